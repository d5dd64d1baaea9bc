"""The shortcomings of a new Google project, as the emulator plays them.

They are missing APIs, roles, quotas and Cloud NAT, and active policies.

An emulated project lacks nothing until a user asks for it (`transient emulator --fresh-project`,
`transient emulator project`). Then each request that a new project of a strict organization would
refuse is refused, in Google's own words, until the user takes the step that permits it.
"""
