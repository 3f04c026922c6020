// SPDX-License-Identifier: GPL-2.0-only
// Numbers as text.

const UNITS: [number, string][] = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
];

/** Formats a time in ns with a suitable unit. */
export function time(ns: number): string {
  const [scale, unit] = UNITS.find(([scale]) => Math.abs(ns) >= scale) ?? UNITS[3];
  return `${significant(ns / scale)} ${unit}`;
}

export function significant(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7) return `${significant(value / 1e6)}M`;
  if (size >= 1e5) return `${significant(value / 1e3)}k`;
  return size >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

export function quantity(value: number | null, unit: string): string {
  if (value === null) return "–";
  if (unit === "ns") return time(value);
  const suffix = unit === "1" ? "" : ` ${unit}`;
  return significant(value) + suffix;
}

/** Formats a relative change as a percentage with its sign. */
export function percent(change: number | null): string {
  if (change === null) return "–";
  const digits = Math.abs(change) < 0.1 ? 1 : 0;
  return `${change < 0 ? "−" : "+"}${Math.abs(change * 100).toFixed(digits)} %`;
}
