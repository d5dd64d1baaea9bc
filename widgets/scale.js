/* A plan's axes: from values to coordinates, and the values that are named on them (panels/plan.py has the same). */

const TICKS = 4;

/** From values to coordinates, by their logarithm where they span more than a factor of five. */
export function scale(values, begin, end) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  const margin = 0.06 * (high - low) || 0.1 * high || 1;
  low = Math.max(low - margin, 0.5 * low);
  high += margin;
  const bent = low > 0 && high / low > 5 ? Math.log : (value) => value;
  const place = (value) => begin + ((bent(value) - bent(low)) / (bent(high) - bent(low))) * (end - begin);
  place.shows = (value) => value >= low && value <= high;
  place.high = high;
  place.ticks = (unit) => (bent === Math.log ? evenly : round)(low / unit, high / unit).map((value) => value * unit);
  return place;
}

/** Values evenly apart by their logarithm, to two digits. */
function evenly(low, high) {
  return [...Array(TICKS).keys()].map((index) => Number((low * (high / low) ** ((index + 0.5) / TICKS)).toPrecision(2)));
}

/** About TICKS round values. */
function round(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / TICKS));
  const step = power * ([1, 2, 5].find((factor) => (high - low) / (power * factor) <= TICKS + 1) ?? 10);
  const first = Math.ceil(low / step);
  return [...Array(Math.floor(high / step) - first + 1).keys()].map((index) => (first + index) * step);
}
