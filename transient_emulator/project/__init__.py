"""What a Google project may lack, as the emulator plays it: APIs, roles, quotas, a way out; and policies that are on.

An emulated project lacks nothing until it is told to (`transient emulator --fresh-project`, `transient emulator
project`): then each request that a new project of a strict organization would refuse is refused, in Google's own words,
until the step that mends it is taken.
"""
