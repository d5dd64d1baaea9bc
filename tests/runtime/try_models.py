"""Which of Tensor2Tensor's registered models can be trained here: `python -m tests.runtime.try_models [MODEL ...]`.

Each model is built with an hparams set of its own, made small, on a problem of the kind that it is for, and makes one
training step on random numbers in the shape of that problem's examples. Each has a process of its own (forked before
TensorFlow has done anything) and a time limit, so a crash or a hang costs one model. Prints one line of JSON for each;
`--table` reads such lines and prints docs/models.md (`--table < lines > docs/models.md`). `-v` shows what models say.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

SECONDS = 900
"""Of one model. The largest graph (70,000 operations, next_frame_basic_stochastic_discrete) takes half a minute to be
built and a minute for its first step, on a machine that does nothing else."""
KINDS = {
    "image_class": ("resnet revnet shake_shake xception basic_fc_relu distillation mtf_res_net", "tiny_image_class"),
    "generated_image": ("imagetransformer mtf_image autoencoder_ transformer_ae", "image_cifar10_plain_gen_rev"),
    "image": ("img2img cycle_gan sliced_gan glow", "tiny_image"),
    "sentence_class": ("text_cnn transformer_encoder transformer_regressor universal_transformer_encoder "
                       "similarity_transformer transformer_scorer", "tiny_sentence_class"),
    "language": ("attention_lm super_lm aligned mtf_unitransformer transformer_memory", "tiny_language"),
    "video": ("next_frame", "tiny_video"),
    "genes": ("gene_expression", "genomics_expression_cage10"),
}  # fmt: skip
SETS = {
    "basic_fc_relu": "basic_fc_small",
    "diagonal_neural_gpu": "neural_gpu",
    "distillation": "distill_resnet_32_to_15_cifar20x5",
    "glow": "glow_hparams",
    "imagetransformer": "imagetransformer_base_tpu",
    "lstm_encoder": "lstm_seq2seq",
    "lstm_seq2seq_attention": "lstm_luong_attention",
    "lstm_seq2seq_attention_bidirectional_encoder": "lstm_luong_attention",
    "neural_queue_model": "neural_stack",
    "neural_stack_model": "neural_stack",
    "resnet": "resnet_cifar_15",
    "revnet": "revnet_38_cifar",
    "shake_shake": "shake_shake_quick",
    "slice_net": "slicenet_1tiny",
    "transformer": "transformer_tiny",
    "transformer_memory": "transformer_tiny",
    "next_frame_base": "next_frame_basic_deterministic",
    "vqa_attention_baseline": "vqa_attention_base",
}
SMALL = {
    "hidden_size": 32,
    "filter_size": 32,
    "num_hidden_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "num_residual_layers": 1,
}


PAGE = """# Which of Tensor2Tensor's models run

Tensor2Tensor 1.15.7 registers {count} models. On TensorFlow {version} {runs} of them make a training step here. Each
was built with the hparams set named beside it, made small (width, number of layers), on the problem named, and
made one step on random numbers. Where a model does not run, the reason is what Tensor2Tensor or a library says, and
where in their code. `python -m tests.runtime.try_models` tries them all anew.

| model | hparams set | problem | training |
|---|---|---|---|
{rows}
"""


def kind_of(model: str) -> str:
    """What kind of problem the model is for."""
    for kind, (begins, _) in KINDS.items():
        if any(model.startswith(begin) for begin in begins.split()):
            return kind
    return "text"


def problem_of(model: str) -> str:
    """The name of a problem of that kind."""
    kind = kind_of(model)
    return KINDS[kind][1] if kind in KINDS else "algorithmic_reverse_binary40"


def register_problems() -> None:
    """Small problems of the kinds of which T2T has none without files or downloads."""
    from tensor2tensor.data_generators import image_utils, text_problems, video_utils
    from tensor2tensor.layers import modalities
    from tensor2tensor.utils import registry

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
    class TinyLanguage(Characters, text_problems.Text2SelfProblem):
        pass

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


def attempt(model: str, folder: Path) -> dict[str, Any]:
    """Try one model in this process; the answer says with which hparams set and problem, and what went wrong."""
    from transient_magics.runtime.folder import RunFolder, RunSpec
    from transient_magics.runtime.t2t import registry

    chosen = hparams_set(model)
    answer: dict[str, Any] = {"model": model, "hparams_set": chosen, "problem": problem_of(model)}
    try:
        registry.find("model", model)
        register_problems()
        spec = RunSpec("try", 10**6, model, chosen, problem_of(model))
        try:
            step(RunFolder(folder), spec, SMALL)
        except (ValueError, AssertionError):  # some models are right in their own sizes only
            step(RunFolder(folder), spec, {})
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        traceback.print_exc()
        answer["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        answer["where"] = place(error)
    return answer


def hparams_set(model: str) -> str:
    """The hparams set that is named like the model, else the first one of its module."""
    from transient_magics.runtime.t2t.registry import index

    if model in SETS:
        return SETS[model]
    module = index()["model", model]
    beside = [name for (kind, name), place in index().items() if kind == "hparams" and place == module]
    for name in (f"{model}_tiny", f"{model}_small", f"{model}_base", model, *beside):
        if name in beside:
            return name
    return "next_frame_basic_stochastic" if model.startswith("next_frame") else "transformer_tiny"


def step(folder: Any, spec: Any, sizes: Mapping[str, int]) -> None:
    """One training step on random examples."""
    from transient_magics.runtime.graph.training import training_graph
    from transient_magics.runtime.graph_mode import tensorflow
    from transient_magics.runtime.trainable import define

    trainable, tf = define(folder, spec, str(folder.data)), tensorflow()
    hparams = trainable._definition.hparams
    for name, small in sizes.items():
        if isinstance(value := hparams.get(name), int) and value > small:
            hparams.set_hparam(name, small)
    with tf.Graph().as_default():
        trainable.prepare()
        features = {name: like(tf, held) for name, held in trainable.placeholders().items()}
        built = training_graph(trainable, features)
        with tf.Session(
            config=tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        ) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
            loss, after, _ = session.run([built.objective.loss, built.after, built.step])
    assert after == 1, after
    assert loss == loss, "the loss is not a number"


def like(tf: Any, placeholder: Any) -> Any:
    """Random numbers of a feature's type and shape: two examples, eight of what has no size."""
    shape = [2, *(size or 8 for size in placeholder.shape.as_list()[1:])]
    if placeholder.dtype == tf.string:
        return tf.fill(shape, "")
    if placeholder.dtype.is_floating:
        return tf.random.uniform(shape, dtype=placeholder.dtype)
    return tf.cast(tf.random.uniform(shape, 1, 2, tf.int32), placeholder.dtype)


def place(error: BaseException) -> str:
    """The innermost line of T2T (or of a library) where it went wrong."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages/" in frame.filename]
    ours = [frame for frame in frames if "/tensor2tensor/" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('site-packages/')[2]} line {ours[-1].lineno}" if ours else ""


def try_in_process(model: str, answers: Any) -> None:
    """Try it, and put the answer into the pipe."""
    with open(os.devnull, "w") as nothing:
        if "-v" not in sys.argv:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            answers.send(attempt(model, Path(folder)))


def try_all(models: Iterable[str]) -> None:
    """One after the other, each in a process of its own."""
    from transient_magics.runtime.t2t import bridges

    bridges.cross()
    processes = multiprocessing.get_context("fork")
    for model in models:
        receiver, sender = processes.Pipe(False)
        process = processes.Process(target=try_in_process, args=(model, sender))
        process.start()
        sender.close()
        answer = {"model": model, "error": f"no step within {SECONDS} s"}
        if receiver.poll(SECONDS):
            try:
                answer = receiver.recv()
            except EOFError:
                answer["error"] = "its process died"
        process.kill()
        process.join()
        print(json.dumps(answer), flush=True)


def table(lines: Iterable[str]) -> str:
    """The page that tells what came out; of several lines about one model, the last. Raises ValueError if one lacks."""
    from transient_magics.runtime.t2t.registry import index

    answers = {answer["model"]: answer for answer in map(json.loads, lines)}
    runs = [answer for answer in answers.values() if "error" not in answer]
    models = sorted(name for kind, name in index() if kind == "model")
    if untried := [model for model in models if model not in answers]:
        raise ValueError(f"not tried: {', '.join(untried)}; try them too, and give all lines")
    rows = [_row(answers[model]) for model in models]
    return PAGE.format(count=len(models), runs=len(runs), version=version("tensorflow"), rows="\n".join(rows))


def _row(answer: Mapping[str, Any]) -> str:
    error, where = answer.get("error", ""), answer.get("where", "")
    reason = error.rstrip(": ").replace("|", "/")
    outcome = f"no: {reason}" + (f" ({where})" if where else "") if error else "runs"
    return f"| `{answer['model']}` | `{answer.get('hparams_set', '')}` | `{answer.get('problem', '')}` | {outcome} |"


def main() -> None:
    """Try what the arguments name, or everything."""
    from transient_magics.runtime.t2t.registry import index

    if "--table" in sys.argv:
        print(table(sys.stdin), end="")
        return
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    try_all(given or sorted(name for kind, name in index() if kind == "model"))


if __name__ == "__main__":
    main()
