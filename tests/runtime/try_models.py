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
    "image": ("autoencoder_dual img2img sliced_gan glow", "tiny_image"),
    "generated_image": ("imagetransformer mtf_image autoencoder_", "image_cifar10_plain_gen_rev"),
    "sentence_class": ("text_cnn transformer_encoder universal_transformer_encoder similarity_transformer "
                       "transformer_scorer", "tiny_sentence_class"),
    "sentence_number": ("transformer_regressor", "tiny_sentence_number"),
    "language": ("attention_lm super_lm mtf_unitransformer transformer_memory", "tiny_language"),
    "translation": ("aligned transformer_symshard", "tiny_translation"),
    "knowledge": ("neural_assistant", "tiny_knowledge"),
    "question": ("vqa", "tiny_question"),
    "atari": ("next_frame_sv2p_atari", "tiny_atari"),
    "video": ("next_frame", "tiny_video"),
    "genes": ("gene_expression", "genomics_expression_cage10"),
}  # fmt: skip
SETS = {
    "autoencoder_dual_discrete": "autoencoder_residual_discrete",
    "autoencoder_residual_vae": "autoencoder_residual",
    "basic_fc_relu": "basic_fc_small",
    "diagonal_neural_gpu": "neural_gpu",
    "distillation": "distill_resnet_32_to_15_cifar20x5",
    "glow": "glow_hparams",
    "imagetransformer": "imagetransformer_base_tpu",
    "img2img_transformer_block_parallel": "img2img_transformer_tiny",
    "lstm_encoder": "lstm_seq2seq",
    "lstm_seq2seq_attention": "lstm_luong_attention",
    "lstm_seq2seq_attention_bidirectional_encoder": "lstm_luong_attention",
    "neural_deque_model": "neural_deque",
    "neural_queue_model": "neural_stack",
    "neural_stack_model": "neural_stack",
    "next_frame_base": "next_frame_basic_deterministic",
    "next_frame_savp_rl": "next_frame_savp",
    "next_frame_sv2p": "next_frame_sv2p",
    "next_frame_sv2p_legacy": "next_frame_sv2p",
    "next_frame_sv2p_two_frames": "next_frame_sv2p",
    "residual_shuffle_exchange": "shuffle_network_baseline",
    "resnet": "resnet_cifar_15",
    "revnet": "revnet_38_cifar",
    "shake_shake": "shake_shake_quick",
    "slice_net": "slicenet_1tiny",
    "transformer": "transformer_tiny",
    "transformer_memory": "transformer_wikitext103_l4k_memory_v0",
    "transformer_vae_flow_prior": "wmt_diag_small",
    "vqa_attention_baseline": "vqa_attention_feature_base",
    "vqa_combined_self_attention": "vqa_self_attention_feature",
    "vqa_iterative_combined_self_attention": "vqa_self_attention_feature",
    "vqa_self_attention": "vqa_self_attention_feature",
    "vqa_simple_image_self_attention": "vqa_attention_feature_base",
}
"""The sets that are not named like their model."""
CHANGES: dict[str, dict[str, Any]] = {
    "distillation": {
        "distill_phase": "train",
        "teacher_model": "basic_fc_relu",
        "teacher_hparams": "basic_fc_small",
    },
    "neural_assistant": {"train_triple_num": 4, "max_triple_length": 3},
    "next_frame_sv2p_atari": {"batch_size": 2},
    "next_frame_sv2p_legacy": {"reward_prediction": False},
    "next_frame_sv2p_two_frames": {"reward_prediction": False},
    "sliced_gan": {"batch_size": 2},
    "transformer_memory": {"split_targets_strided_training": False, "recurrent_memory_batch_size": 2},
    "transformer_symshard": {"num_model_shards": 2},
}
"""What a set leaves open, T2T no longer can, or would take minutes."""
LENGTHS = {
    ("gene_expression_conv", "inputs"): 256,
    ("transformer_memory", "targets"): 64,
    ("transformer_memory", "chunk_number"): 64,
}
"""Of features that have no size of their own; the others get 8."""
WHY = {
    "autoencoder_stacked": "bug in T2T: the encoder returns an image and its layers, but its caller expects an image",
    "dense_bitwise": "needs gym, and learns in an environment instead of from examples",
    "feed_forward": "needs gym, and learns in an environment instead of from examples",
    "glow": "the model reads a batch to initialize itself, but does not pass a data folder",
    "imagetransformer_moe": "bug in T2T: the model calls a function that was removed",
    "lstm_seq2seq_attention": "TensorFlow 2 has no tf.contrib.seq2seq",
    "mtf_": "the training step of Mesh TensorFlow requires TensorFlow's Estimator, which was removed",
    "next_frame_base": "not a model, but the base class of the video models",
    "next_frame_glow": "the model reads a batch to initialize itself, but does not pass a data folder",
    "next_frame_savp": "needs tensorflow-gan, which requires TensorFlow's Estimator, which was removed",
    "next_frame_sv2p_discrete": "bug in T2T: the model uses an attribute that was removed from the video models",
    "random_policy": "needs gym, and learns in an environment instead of from examples",
}
"""Of models that make no step, by how their names begin."""
SMALL = {
    "hidden_size": 32,
    "filter_size": 32,
    "num_hidden_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "num_residual_layers": 1,
}


PAGE = """# Tensor2Tensor models

Tensor2Tensor (T2T) 1.15.7 registers {count} models. With TensorFlow {version}, {runs} of them complete a training step.
The table lists all models. To train one, name the model, its set of hyperparameters (hparams) and a problem:

```text
%%train --model resnet --hparams-set resnet_cifar_15 --problem image_cifar10 --train-steps 1000
```

For the table, we built each model with the hparams set and the problem in its row, and ran one step on random
examples. (Integer features were all 1, and texts were empty.) We reduced the width and the number of layers. Other
hparams that we changed follow the name of the set. Problems whose names begin with `tiny_` are in
`tests/runtime/trial_problems.py`. If a model fails, its row shows the cause, the error message, and the place in T2T
or in a library.

`python -m tests.runtime.try_models` repeats this for all models. The test suite repeats it for nine of them.

| model | hparams set | problem | training |
|---|---|---|---|
{rows}

## Differences from Tensor2Tensor's own training

Data, losses, schedules, optimizers and metrics are Tensor2Tensor's own code. The differences are:

- **Order of the examples**: a worker that starts reads the files in a random order, and begins each file at a random
  position. T2T's default of `batch_shuffle_size=512` reads 512 batches before the first step, so it is not used. A
  value that you set in `--hparams`, or that an hparams set contains, is used.
- **Learning rate**: T2T divides the learning rate by the square root of the declared number of asynchronous workers.
  Here, the number of workers that currently train is used (`--lr-policy`).
- **Synchronous steps**: T2T averages the losses of the workers with equal weights. Here, each loss is weighted by its
  number of targets. This includes losses without targets of their own (expert balance, KL divergence). Gradients of
  embeddings become dense.
- **Moving statistics of batch normalization**: a synchronous step assigns the mean of the workers' new values. In an
  asynchronous step, the parameter server updates the current value with the worker's statistics. T2T adds the
  worker's difference to an older value instead. If a model assigns variables outside `tf.GraphKeys.UPDATE_OPS`, each
  worker makes these assignments separately.
- **float16**: a step with gradients that are not finite is skipped, as in T2T, but here it counts as a step.
- **Evaluation loss**: the loss is the mean over examples. T2T uses the mean over batches, which can differ in size.
  For a model without an evaluation loss (resnet), it is the negative log perplexity. The metrics are the same. Hooks
  of T2T's trainer (BLEU of whole files, decoding) do not run.
- **`run.decode`**: decoding is greedy unless you set `beam_size`. `t2t_decoder` uses `beam_size=4` and `alpha=0.6` by
  default.
- **`run.export`**: the exported model accepts examples in the format of the problem's generator. It returns `scores`
  or `logits`.
- **Seeds**: a seed that the cell sets does not change the initial values. Use `--seed`.
- **`clip_grad_norm`** can be an integer. T2T rejects integers.

## Not supported

The following features raise an error that names them:

- everything that requires TensorFlow's Estimator: hooks, `estimator_model_fn`, `train_hooks`, a problem's `input_fn`;
- a model's own `optimize` method, if it does anything other than call T2T's `optimize` once;
- mixtures of problems (`MultiProblem`);
- `warm_start_from_second`, `pretrained_model_dir` and `gpu_automatic_mixed_precision`;
- Adafactor with `--ps-shards`.
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


def attempt(model: str, folder: Path) -> dict[str, Any]:
    """Try one model in this process; the answer says with which hparams set and problem, and what went wrong."""
    from transient_magics.protocol.run import RunSpec
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.training.t2t import registry

    chosen = hparams_set(model)
    changes = CHANGES.get(model, {})
    answer: dict[str, Any] = {"model": model, "hparams_set": chosen, "changes": changes, "problem": problem_of(model)}
    try:
        registry.find("model", model)
        from tests.runtime import trial_problems  # noqa: F401 - registers them

        spec = RunSpec("try", 10**6, model, chosen, problem_of(model))
        try:
            step(RunFolder(folder), spec, SMALL)
        except (ValueError, AssertionError):  # some models are right in their own sizes only
            step(RunFolder(folder), spec, {})
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        traceback.print_exc()
        answer["error"] = f"{type(error).__name__}: {words(error)}"
        answer["where"] = place(error)
    return answer


def hparams_set(model: str) -> str:
    """The hparams set that is named like the model, else the first one of its module."""
    from transient_magics.runtime.training.t2t.registry import index

    if model in SETS:
        return SETS[model]
    sets = {name: place for (kind, name), place in index().items() if kind == "hparams"}
    beside = [name for name, place in sets.items() if place == index()["model", model]]
    named = [name for name in (f"{model}_tiny", f"{model}_small", f"{model}_base", model) if name in sets]
    return [*named, *beside, "transformer_tiny"][0]


def step(folder: Any, spec: Any, sizes: Mapping[str, int]) -> None:
    """One training step on random examples, with no hparam of `sizes` above what is said there."""
    from transient_magics.runtime.tf.graph_mode import tensorflow
    from transient_magics.runtime.training.graph.step import training_graph
    from transient_magics.runtime.training.loading import load_model

    trainable, tf = load_model(folder, spec, str(folder.data)), tensorflow()
    hparams = trainable._definition.hparams
    for name, value in CHANGES.get(spec.model, {}).items():
        assert name in hparams, name
        setattr(hparams, name, value)  # not set_hparam, which knows no type for what a set leaves open
    for name, small in sizes.items():
        if isinstance(value := hparams.get(name), int) and value > small:
            hparams.set_hparam(name, small)
    with tf.Graph().as_default():
        trainable.prepare()
        features = {
            name: like(tf, held, LENGTHS.get((spec.model, name), 8)) for name, held in trainable.placeholders().items()
        }
        built = training_graph(trainable, features)
        with tf.Session(
            config=tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        ) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
            loss, after, _ = session.run([built.objective.loss, built.after, built.step])
    assert after == 1, after
    assert loss == loss, "the loss is not a number"


def like(tf: Any, placeholder: Any, length: int) -> Any:
    """Random numbers of a feature's type and shape: two examples, `length` of what has no size."""
    shape = [2, *(size or length for size in placeholder.shape.as_list()[1:])]
    if placeholder.dtype == tf.string:
        return tf.fill(shape, "")
    if placeholder.dtype.is_floating:
        return tf.random.uniform(shape, dtype=placeholder.dtype)
    return tf.cast(tf.random.uniform(shape, 1, 2, tf.int32), placeholder.dtype)


def words(error: BaseException) -> str:
    """What it says, without TensorFlow's account of the operation; of a bare assertion, what was asserted."""
    said = " ".join(str(error).split()) or str(traceback.extract_tb(error.__traceback__)[-1].line)
    said = said.partition(" for '{{node")[0]
    return said if len(said) <= 160 else f"{said[:160]} ..."


def place(error: BaseException) -> str:
    """The innermost line of T2T (or of a library) where it went wrong."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages/" in frame.filename]
    ours = [frame for frame in frames if "/tensor2tensor/" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('site-packages/')[2]} line {ours[-1].lineno}" if ours else ""


def try_in_process(model: str, answers: Any) -> None:
    """Try it, and put the answer into the pipe."""
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        if "-v" not in sys.argv:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            answers.send(attempt(model, Path(folder)))


def try_all(models: Iterable[str]) -> None:
    """One after the other, each in a process of its own."""
    from transient_magics.runtime.training.t2t import bridges

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
    from transient_magics.runtime.training.t2t.registry import index

    answers = {answer["model"]: answer for answer in map(json.loads, lines)}
    runs = [answer for answer in answers.values() if "error" not in answer]
    models = sorted(name for kind, name in index() if kind == "model")
    if untried := [model for model in models if model not in answers]:
        raise ValueError(f"not tried: {', '.join(untried)}; try them too, and give all lines")
    rows = [_row(answers[model]) for model in models]
    return PAGE.format(count=len(models), runs=len(runs), version=version("tensorflow"), rows="\n".join(rows))


def listed(changes: Mapping[str, Any]) -> str:
    """As `--hparams` takes them."""
    return ",".join(f"{name}={value}" for name, value in changes.items())


def _row(answer: Mapping[str, Any]) -> str:
    model, outcome = answer["model"], "runs"
    if error := answer.get("error", "").rstrip(":. ").replace("|", "/"):
        whys = [why for begin, why in WHY.items() if model.startswith(begin)]
        said = ", ".join(filter(None, (error, answer.get("where"))))
        outcome = f"no: {whys[0]} ({said})" if whys else f"no: {said}"
    chosen = f"`{answer.get('hparams_set', '')}`"
    if changes := listed(answer.get("changes", {})):
        chosen += f" with `{changes}`"
    return f"| `{model}` | {chosen} | `{answer.get('problem', '')}` | {outcome} |"


def main() -> None:
    """Try what the arguments name, or everything."""
    from transient_magics.runtime.training.t2t.registry import index

    if "--table" in sys.argv:
        print(table(sys.stdin), end="")
        return
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    try_all(given or sorted(name for kind, name in index() if kind == "model"))


if __name__ == "__main__":
    main()
