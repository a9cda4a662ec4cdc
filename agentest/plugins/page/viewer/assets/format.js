// Numbers and moments as people read them.

// The one rule for turns: data and addresses count them from 0, people read "Turn 1".
export function turnName(index) {
  return `Turn ${index + 1}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function cost(usd) {
  if (usd === null || usd === undefined) return "cost unknown";
  if (usd === 0) return "$0";
  return usd < 0.005 ? "<$0.01" : `$${usd.toFixed(2)}`;
}

export const grouped = (number) => number.toLocaleString("en");

export function count(number, noun, plural = `${noun}s`) {
  return `${grouped(number)} ${number === 1 ? noun : plural}`;
}

export function percent(share) {
  const value = share * 100;
  return `${value >= 99.95 || value === 0 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(value > 10 ? 0 : 1)}%`;
}

// An average or a share with its 95 % interval.
export function figure(value, asShare = false) {
  const text = asShare ? percent : decimal;
  const shown = typeof value.value === "number" ? text(value.value) : value.value;
  return value.low === null || value.low === undefined ? shown : `${shown} [${text(value.low)}–${text(value.high)}]`;
}

export function decimal(number) {
  return typeof number === "number" ? String(Math.round(number * 100) / 100) : String(number);
}

export function moment(iso) {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? iso || "" : date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}
