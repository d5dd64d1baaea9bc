from .configurations import StudyPreview as StudyPreview
from .declare import declare_study as declare_study
from .handle import Study as Study
from .handle import Trial as Trial
from .handle import study as study
