"""Cloud Storage on this machine: buckets and objects behind the JSON API, as files below the emulator's state.

`Endpoint` answers requests below /storage/v1, /upload/storage/v1, /download/storage/v1 and /batch/storage/v1, and the
part of the XML API that uploads objects in parts. Objects are replaced atomically and survive the emulator's death;
contents are streamed, never held in memory. Whoever may ask at all may do all, but for the boundary of a token that he
got from the Security Token Service (`tokens.py`). There are no old versions of objects and no encryption.
"""

from .endpoint import Endpoint

__all__ = ["Endpoint"]
