/* What a kernel sends: written by tools/page_types.py from the package, see there. */

export type Figure = number | null;
export type Part = [string, string, number, number];
export type Mark = [string, number, number | null, string] | [string, number, number | null, string, number | null];
export type Parameter = number | string;
export type Point = [number, number];
export type BagPoint = [string, number, (number | string)[], (number | null)[], (number | null)[]];

/** A VM. `first`: it has a lane before all are asked for; `runs`: in which it trains, several
 * where trials share it; `leaves_at`: when it is taken, 0 without a notice. */
export interface Lane {
  name: string;
  first: boolean;
  runs: string[];
  role: string;
  chief: boolean;
  machine: string;
  zone: string;
  terms: string;
  state: string;
  words: string;
  leaves_at: number;
  revocable: boolean;
  life: Part[];
}

/** US dollars, per hour where it says so; `pace`: seconds of the bill's clock per second;
 * `limit_used`: 0 to 1. */
export interface Cost {
  limit_words: string;
  limit_used: number;
  total: Figure;
  hourly: Figure;
  pace: number;
  on_demand: Figure;
  on_demand_hourly: Figure;
  total_words: string;
  hourly_words: string;
  on_demand_words: string;
  saved_words: string;
  lines_words: string;
  transfer_words: string;
  source: string;
}

/** Where the curves of a run end by its figures: seconds since 1970, step, loss, steps per
 * second. */
export interface End {
  time: number;
  step: number;
  loss: Figure;
  speed: Figure;
}

/** Other workers for a run with a deadline, or those that are to be given up: the `number` by
 * which it is agreed to, what and why, how it is agreed to in a cell, and until when it can be, in
 * seconds since 1970. */
export interface Proposal {
  number: number;
  text: string;
  how: string;
  until: number;
}

/** A run. `counted`: how far it is, in words; `facts`: names and values in words; `data`: how it
 * reads records that come in blocks, empty for others; `proposal`: what can be agreed to; `end`:
 * where the curves end (`curves.end_of`). */
export interface Training {
  name: string;
  title: string;
  phase: string;
  phase_words: string;
  words: string;
  step: number;
  steps: number;
  counted: string;
  forecast: string;
  facts: [string, string][];
  data: string;
  proposal: Proposal | null;
  end: End | null;
  stoppable: boolean;
}

/** A piece of work that has one line: a run beside the one whose curves are shown, a job, a Dask
 * cluster.
 *
 * `step` of `steps` is its progress (`steps` 0: none is shown). Without a `name` it counts further
 * work. */
export interface WorkLine {
  name: string;
  phase: string;
  words: string;
  step: number;
  steps: number;
  stoppable: boolean;
}

/** The lines of all work of one kind; `title` is what the list is called. */
export interface WorkGroup {
  kind: string;
  title: string;
  lines: WorkLine[];
}

/** An event, or several alike ones. `at`: seconds since 1970. */
export interface EventLine {
  at: number;
  clock: string;
  text: string;
  tone: string;
  family: string;
}

/** A snapshot; `at`, `since` and `until` in seconds since 1970, `until` 0 as long as the cluster
 * goes on.
 *
 * `proposal`: which workers are to be given up, where that can be agreed to. */
export interface View {
  version: number;
  at: number;
  as_of: string;
  name: string;
  focus: string | null;
  phase: string;
  phase_words: string;
  about: string;
  over: boolean;
  emulated: boolean;
  trouble: string;
  proposal: Proposal | null;
  spec: string;
  since: number;
  until: number;
  vms: Lane[];
  training: Training | null;
  beside: WorkLine[];
  work: WorkGroup[];
  cost: Cost;
  ending: string;
  events: EventLine[];
}

/** What became of something that the page asked for. */
export interface Notice {
  text?: string;
  tone?: string;
}

/** What a change of the workers means; empty where none is asked. */
export interface Question {
  spec?: string;
  text?: string;
}

/** A snapshot as it is sent. `heard`: the name of the page's wish that was taken up last. */
export interface Frame {
  version: number;
  at: number;
  as_of: string;
  name: string;
  focus: string | null;
  phase: string;
  phase_words: string;
  about: string;
  over: boolean;
  emulated: boolean;
  trouble: string;
  proposal: Proposal | null;
  spec: string;
  since: number;
  until: number;
  vms: Lane[];
  training: Training | null;
  beside: WorkLine[];
  work: WorkGroup[];
  cost: Cost;
  ending: string;
  events: EventLine[];
  notice: Notice;
  question: Question;
  heard: string;
}

/** Columns of one worker: steps per second; where a run is shown by itself also examples or
 * tokens per step, and steps of others meanwhile. */
export interface OfWorker {
  speed: Figure[];
  batch?: Figure[];
  staleness?: Figure[];
}

/** A worker's step: seconds of its `parts`, in the order of their names; `step` and `words` say
 * it and its parts. */
export interface Bar {
  worker: string;
  step: string;
  parts: Figure[];
  words: string;
}

/** Where the time of a step goes. `names` of the parts; `words`: of when it is; `more` workers
 * have no bar. */
export interface Split {
  names: string[];
  words: string;
  bars: Bar[];
  more: number;
}

/** Rows over time: seconds since 1970, step, loss, steps per second, and how fast the workers
 * could be. */
export interface Columns {
  time: number[];
  step: number[];
  loss: Figure[];
  speed: Figure[];
  expected: Figure[];
  workers: Record<string, OfWorker>;
}

/** What the charts of `run` are drawn from.
 *
 * `below`: the share of the expected speed below which the run is called slow (0: never); `width`:
 * seconds of a row (0: not told); `unnamed`: there are more workers than are told apart; `split`:
 * None before a step was split. */
export interface Curves {
  time: number[];
  step: number[];
  loss: Figure[];
  speed: Figure[];
  expected: Figure[];
  workers: Record<string, OfWorker>;
  run: string;
  below: number;
  width: number;
  unnamed: boolean;
  end: End | null;
  split: Split | null;
  marks: Mark[];
}

/** Curves that are sent now and then; the latest has the highest `number`. */
export interface Base {
  time: number[];
  step: number[];
  loss: Figure[];
  speed: Figure[];
  expected: Figure[];
  workers: Record<string, OfWorker>;
  run: string;
  below: number;
  width: number;
  unnamed: boolean;
  end: End | null;
  split: Split | null;
  marks: Mark[];
  number: number;
}

/** What came behind a base since: rows that take the place of those of the base of that number
 * from row `keep` on.
 *
 * `expected` has all rows and not those alone, `split` is that of now; `marks` are there if they
 * are others than the base's. */
export interface Tail {
  time: number[];
  step: number[];
  loss: Figure[];
  speed: Figure[];
  expected: Figure[];
  workers: Record<string, OfWorker>;
  base: number;
  keep: number;
  unnamed: boolean;
  end: End | null;
  split: Split | null;
  marks?: Mark[];
}

/** Of a run whose curves are not drawn: steps per second of its workers, for their lanes;
 * `width`: seconds of a row. */
export interface Speeds {
  run: string;
  width: number;
  time: number[];
  workers: Record<string, Figure[]>;
}

/** The last lines that a worker wrote; empty before anybody asked. */
export interface Log {
  worker?: string;
  text?: string;
}

/** A trial of a study.
 *
 * `params` are in the order of the study's parameters. `value` is the objective's latest value.
 * `hours`, `dollars` and `revocations` are sums over the runs of the trial. `curve` has pairs of
 * step and value; it is empty if the curve is not drawn. */
export interface TrialLine {
  number: number;
  state: string;
  words: string;
  params: Parameter[];
  value: Figure;
  best: boolean;
  hours: number;
  dollars: number;
  revocations: number;
  stoppable: boolean;
  curve: Point[];
}

/** A study.
 *
 * `ended` of `planned` trials have ended. `metric` and `direction` (max or min) are those of the
 * objective. `curves_of` names what the curves of the trials show. `best_so_far` has the number
 * and the value of each trial that was better than all before it. */
export interface Study {
  name: string;
  phase: string;
  words: string;
  about: string;
  ended: number;
  planned: number;
  metric: string;
  direction: string;
  curves_of: string;
  best_words: string;
  cost_words: string;
  emulated: boolean;
  stoppable: boolean;
  params: string[];
  trials: TrialLine[];
  best_so_far: Point[];
}

/** A part of a step.
 *
 * `seconds` is the mean and `words` the same with its interval. `share` is the share of the step,
 * and `dollar` the part of a dollar that it costs, or why that is not shown. `sure`: the part is
 * larger than the noise. */
export interface StallPart {
  name: string;
  seconds: Figure;
  words: string;
  share: string;
  dollar: string;
  sure: boolean;
}

/** A kind of VM with the parts of its step.
 *
 * `advice` is empty until enough was measured. `reads`: the workers read files, so a cache or a
 * disk matters. */
export interface StallBar {
  vm: string;
  heading: string;
  parts: StallPart[];
  advice: string;
  reads: boolean;
}

/** A measurement of stalls so far. `below` are the notes below the bars. */
export interface Stalls {
  name: string;
  words: string;
  bars: StallBar[];
  below: string[];
}

/** The predicted step with the change that was `asked` for: in words and by part, or an `error`.
 *
 * `parts` has names and seconds. */
export interface StallAnswer {
  asked: number;
  error: string;
  words: string;
  parts: [string, Figure][];
}

/** An axis on which points are placed: a parameter, or an output.
 *
 * `kind` is even, log or choice. A choice has `choices`, the others run from `low` to `high`.
 * `named` are labels: a place from 0 to 1, and the value there. */
export interface BagAxis {
  name: string;
  output: boolean;
  kind: string;
  low: number;
  high: number;
  choices: Parameter[];
  named: [number, string][];
}

/** The quality of a surrogate for one output, judged by its last batch.
 *
 * `coverage` is the share of results inside the 90% intervals, `residual` the median residual in
 * units of its own standard deviation, `largest` the largest standard deviation, and `until` the
 * one at which the bag stops. */
export interface BagTried {
  output: string;
  coverage: Figure;
  residual: Figure;
  largest: Figure;
  until: Figure;
  good: boolean;
}

/** A VM of a bag: its age, and the number of the job that it runs (None: no job).
 *
 * `at` has the parameters of that job in words, `words` its duration. */
export interface BagVm {
  name: string;
  age: string;
  state: string;
  job: number | null;
  at: string;
  words: string;
}

/** A bag.
 *
 * `results` of `wanted` results are there. `per_result` is in US dollars. `counts` has the number
 * of points in each state. `more` VMs have no row. `tried_words` is empty without a surrogate. */
export interface Bag {
  name: string;
  phase: string;
  words: string;
  about: string;
  results: number;
  wanted: number;
  cost_words: string;
  per_result: Figure;
  ends: string;
  counts: [string, number][];
  tried_words: string;
  tried: BagTried[];
  axes: BagAxis[];
  points: BagPoint[];
  vms: BagVm[];
  more: number;
  stoppable: boolean;
}
