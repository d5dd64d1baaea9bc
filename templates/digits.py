"""Read handwritten digits with a small residual network.

The 1,797 images of 8x8 pixels are real; scikit-learn brings them along.

    %%train --model resnet --hparams-set resnet_digits --problem image_digits --train-steps 600
"""

import numpy as np
from tensor2tensor.data_generators import image_utils
from tensor2tensor.models import resnet
from tensor2tensor.utils import registry


@registry.register_problem
class ImageDigits(image_utils.Image2ClassProblem):
    """Classify digits. Every fifth image is held out for the evaluation."""

    is_small = True
    num_classes = 10
    num_channels = 1
    train_shards = 4
    dev_shards = 1

    def generator(self, data_dir, tmp_dir, is_training):
        from sklearn.datasets import load_digits  # only where the records are made

        digits = load_digits()
        held_out = np.arange(len(digits.target)) % 5 == 0
        chosen = ~held_out if is_training else held_out
        images = np.uint8(digits.images[chosen] * 255 / 16)[..., np.newaxis]
        return image_utils.image_generator(list(images), list(digits.target[chosen]))

    def preprocess_example(self, example, mode, hparams):
        example["inputs"].set_shape([8, 8, 1])
        return super().preprocess_example(example, mode, hparams)


@registry.register_hparams
def resnet_digits():
    hparams = resnet.resnet_cifar_15()
    hparams.layer_sizes = [1, 1, 1]
    hparams.filter_sizes = [8, 8, 16, 32]
    hparams.batch_size = 32
    hparams.learning_rate = 0.1
    return hparams
