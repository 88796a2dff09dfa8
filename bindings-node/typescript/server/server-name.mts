// Which server a request is for, as the core says.
import { Engine } from '../native.mjs';

let last: { target: string; routed: string | undefined; name: string } | undefined;

/**
 * The name of the server of a request's target. `routed` is the target by which it was routed, if that may be another one.
 * Most requests of a process have the same.
 */
export function serverNameOf(target: string, routed?: string): string {
  if (last?.target !== target || last.routed !== routed) {
    last = { target, routed, name: Engine.serverName(target, routed) };
  }
  return last.name;
}
