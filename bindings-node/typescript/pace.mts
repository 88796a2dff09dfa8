// How calls are paced by the name of their tool, as it is given.
import { invalid } from './errors.mjs';
import { PACE_OPTIONS } from './option-names.mjs';
import { checkNames } from './options.mjs';

/** What a pace can say. What is not named is as the options of the same name say. Durations are in milliseconds. */
export interface PaceOptions {
  /** How long a client waits before it comes back, from the first priming event on. */
  retryMs?: number;
  /** How long a connection that resumes stays open; 0 is pure polling. Default until the call ends. */
  holdMs?: number;
  /** The engine closes a connection at this age; the client resumes. 0 switches it off. */
  maxConnectionMs?: number;
  /** The engine closes a connection that carried this much; the client resumes. 0 switches it off. */
  maxConnectionBytes?: number;
  /**
   * When the handler has sent nothing for so long, a client that asked for progress is sent some. 0 (the default) switches
   * it off.
   */
  heartbeatMs?: number;
  /** How long the finished stream, or task, stays readable. */
  retentionMs?: number;
  /** A call that takes longer becomes a task, if its client takes tasks: docs/tasks.md. 0 is every call. */
  taskAfterMs?: number;
  /** Only clients that take tasks may call the tool. Default false. */
  requiresTask?: boolean;
}

const isObject = (value: unknown): value is object =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

type Said = Record<string, number | boolean>;

/** The option `pace`; what its values may be the native half says. */
export function checkedPaces(paces: unknown): Record<string, Said> {
  if (!isObject(paces) || !Object.values(paces).every(isObject)) {
    invalid('pace must be an object that gives names of tools their paces, like { render_frame: { retryMs: 5000 } }');
  }
  return Object.fromEntries(Object.entries(paces).map(([pattern, pace]) => [pattern, said(pattern, pace)]));
}

function said(pattern: string, pace: object): Said {
  checkNames(pace, PACE_OPTIONS, `the pace '${pattern}'`);
  const isOne = (value: unknown) => typeof value === 'number' || typeof value === 'boolean';
  // What is neither is no number that any option takes.
  return Object.fromEntries(Object.entries(pace).map(([name, value]) => [name, isOne(value) ? value : Number.NaN]));
}
