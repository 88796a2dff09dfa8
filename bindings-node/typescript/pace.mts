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

/** The option `pace`; what its values may be the native half says. */
export function checkedPaces(paces: unknown): Record<string, Record<string, number | boolean>> {
  if (!isObject(paces) || !Object.values(paces).every(isObject)) {
    invalid('pace must be an object that gives names of tools their paces, like { render_frame: { retryMs: 5000 } }');
  }
  for (const [pattern, pace] of Object.entries(paces as Record<string, object>)) {
    checkNames(pace, PACE_OPTIONS, `the pace '${pattern}'`);
    for (const [name, value] of Object.entries(pace)) {
      if (typeof value !== 'boolean' && (typeof value !== 'number' || !(value >= 0))) {
        invalid(`${name} of the pace '${pattern}' must be a number that is not negative`);
      }
    }
  }
  return paces as Record<string, Record<string, number | boolean>>;
}
