"""Scripted courses of every kind of work, and what a user saw of each: events, bill and panel, as recorded texts.

The controller's decisions, its classes for each kind of work, the journal and the texts are the real ones. Compute
Engine and the VMs are scripted, and time is virtual, so every course gives the same text each time.

- `steps.py`: the steps of a course. It is the only module here that names events and classes of the controller.
- `courses.py`: the courses, made of steps.
- `picture.py`: the text of a course.
- `recorded/`: the texts. `python -m tests.scenarios` writes them again, after a change of wording that is intended.
"""
