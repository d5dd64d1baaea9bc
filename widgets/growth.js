/* Curves that grow: the kernel sends all of them now and then (a base), and in between what came behind it since. */

/** @typedef {import("./snapshot").Figure} Figure */

/** The curves of a base and the tail that was made for it; of another one's, the base as it is.
 * @param {Partial<import("./snapshot").Base>} base @param {Partial<import("./snapshot").Tail>} tail
 * @returns {Partial<import("./snapshot").Curves>} */
export function grown(base, tail) {
  if (!base.time || tail.base !== base.number || tail.keep === undefined) return base;
  const { keep } = tail;
  const rows = base.time.length;
  const joined = (before = Array(rows).fill(null), after = []) => [...before.slice(0, keep), ...after];
  const workers = Object.entries(tail.workers ?? {}).map(([name, after]) => {
    const before = base.workers?.[name];
    return [name, Object.fromEntries(Object.keys(after).map((what) => [what, joined(before?.[what], after[what])]))];
  });
  return {
    ...base,
    time: joined(base.time, tail.time), step: joined(base.step, tail.step), loss: joined(base.loss, tail.loss),
    speed: joined(base.speed, tail.speed), expected: tail.expected, workers: Object.fromEntries(workers),
    unnamed: tail.unnamed, end: tail.end, split: tail.split ?? null, marks: tail.marks ?? base.marks,
    epochs: tail.epochs ?? base.epochs,
  };
}

/** Whether a base was lost on its way: this tail is of one that never came.
 * @param {Partial<import("./snapshot").Base>} base @param {Partial<import("./snapshot").Tail>} tail */
export function lacks(base, tail) {
  return tail.base !== undefined && tail.base > (base.number ?? 0);
}
