from .declare import declare_job as declare_job
from .handle import Job as Job
from .handle import job as job
