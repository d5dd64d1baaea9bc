"""Cloud Storage on this machine: buckets and objects behind the JSON API, as files.

`Endpoint` answers requests below /storage/v1, /upload/storage/v1, /download/storage/v1 and
/batch/storage/v1, and the part of the XML API that uploads objects in parts. Objects are replaced
atomically and survive the emulator's death. Contents are streamed, never held in memory. A client
that may ask at all may do everything, except with a token of the Security Token Service, which has
a boundary (`tokens.py`). There are no old versions of objects and no encryption.
"""

from .endpoint import Endpoint

__all__ = ["Endpoint"]
