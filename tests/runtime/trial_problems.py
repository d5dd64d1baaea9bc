"""Small problems, without files or downloads, of the kinds that T2T's models are for. Importing this registers them."""

from __future__ import annotations

from typing import Any

from tensor2tensor.data_generators import image_utils, text_encoder, text_problems, video_utils, vqa
from tensor2tensor.layers import modalities
from tensor2tensor.utils import registry

from transient_magics.runtime.tf.graph_mode import tensorflow

tf = tensorflow()


@registry.register_problem
class TinyImageClass(image_utils.Image2ClassProblem):
    is_small, num_classes, train_shards, dev_shards = True, 10, 1, 1

    def preprocess_example(self, example: Any, mode: str, hparams: Any) -> Any:
        example["inputs"].set_shape([32, 32, 3])
        return super().preprocess_example(example, mode, hparams)


@registry.register_problem
class TinyImage(image_utils.ImageProblem):
    num_channels, train_shards, dev_shards = 3, 1, 1

    def preprocess_example(self, example: Any, mode: str, hparams: Any) -> Any:
        image = example["inputs"]
        image.set_shape([32, 32, 3])
        return {"inputs": image, "targets": image}

    def hparams(self, defaults: Any, model_hparams: Any) -> None:
        defaults.modality = dict.fromkeys(("inputs", "targets"), modalities.ModalityType.IMAGE)
        defaults.vocab_size = dict.fromkeys(("inputs", "targets"), 256)
        defaults.batch_size_multiplier = 256
        defaults.input_space_id = defaults.target_space_id = 1


class Characters:
    vocab_type = text_problems.VocabType.CHARACTER


@registry.register_problem
class TinySentenceClass(Characters, text_problems.Text2ClassProblem):
    num_classes = 2


@registry.register_problem
class TinySentenceNumber(Characters, text_problems.Text2RealProblem):
    pass


@registry.register_problem
class TinyLanguage(Characters, text_problems.Text2SelfProblem):
    pass


@registry.register_problem
class TinyTranslation(Characters, text_problems.Text2TextProblem):
    pass


@registry.register_problem
class TinyKnowledge(TinyTranslation):
    """Sentences to answer with facts (subject, predicate, object), of which the hparams say how many and how long."""

    def example_reading_spec(self) -> Any:
        fields, decoders = super().example_reading_spec()
        names = ("encoded_triples", "triple_lens", "subject_mask", "predicate_mask", "object_mask")
        fields.update(dict.fromkeys(names, tf.VarLenFeature(tf.int64)), triple_labels=tf.VarLenFeature(tf.float32))
        return fields, decoders

    def preprocess_example(self, example: Any, mode: str, hparams: Any) -> Any:
        facts, words = hparams.train_triple_num, hparams.train_triple_num * hparams.max_triple_length
        for name in ("subject_mask", "predicate_mask", "object_mask"):
            example[name] = tf.reshape(example[name], [words])
        for name in ("triple_lens", "triple_labels"):
            example[name] = tf.reshape(example[name], [facts])
        example["encoded_triples"] = tf.reshape(example["encoded_triples"], [words, 1, 1])
        return super().preprocess_example(example, mode, hparams)

    def hparams(self, defaults: Any, unused_model_hparams: Any) -> None:
        super().hparams(defaults, unused_model_hparams)
        defaults.modality["encoded_triples"] = modalities.ModalityType.SYMBOL
        defaults.vocab_size["encoded_triples"] = defaults.vocab_size["inputs"]


@registry.register_problem
class TinyVideo(video_utils.VideoProblem):
    num_channels, frame_height, frame_width, total_number_of_frames = 3, 64, 64, 100

    @property
    def is_generate_per_split(self) -> bool:
        return True

    def hparams(self, defaults: Any, model_hparams: Any) -> None:
        names = ("inputs", "targets")
        defaults.modality = dict.fromkeys(names, modalities.ModalityType.VIDEO)
        defaults.vocab_size = dict.fromkeys(names, 256)


@registry.register_problem
class TinyAtari(TinyVideo):
    """In the size of Atari's frames, halved."""

    frame_height, frame_width = 105, 80


@registry.register_problem
class TinyQuestion(vqa.ImageVqav2RcnnFeatureTokens10kLabels3k):
    """Features of an image's 36 parts, a question about it, and its answers."""

    def feature_encoders(self, data_dir: str) -> Any:
        letters = text_encoder.ByteTextEncoder()
        return {"inputs": None, "question": letters, "targets": letters}

    def preprocess_example(self, example: Any, mode: str, hparams: Any) -> Any:
        example = super().preprocess_example(example, mode, hparams)
        return {name: example[name] for name in ("inputs", "question", "targets")}  # the others have no length
