// The options of this thread's engines.
import type { ConfigureOptions } from './engine-options.mjs';
import { invalid } from './errors.mjs';
import { Engine } from './native.mjs';
import { Runtime, state, writeLog } from './runtime.mjs';
import { status } from './status.mjs';

/**
 * Sets the options of this thread's engines: of the shared one, which serves transports that name no event store,
 * and of those over users' own event stores. To be called before the transports are made; called again, it
 * replaces the options for new ones. Throws what `openStore` rejects with, and then changes nothing; with
 * `onUnsupported: 'raise'` it throws for an SDK that Tailrope does not fit under.
 */
export function configure(options: ConfigureOptions = {}): void {
  const { onUnsupported = 'stock', ...others } = options;
  if (!['stock', 'raise'].includes(onUnsupported)) {
    invalid("onUnsupported must be 'stock' or 'raise'");
  }
  const differing = [...state.seams.values()].find(({ difference }) => difference !== undefined);
  if (onUnsupported === 'raise' && differing !== undefined) {
    throw differing.unsupported(differing.difference);
  }
  const shared = new Runtime(others);
  state.onUnsupported = onUnsupported;
  state.openBefore += Engine.statsOf(state.shared === undefined ? [] : [state.shared.engine]).sessions ?? 0;
  state.options = others;
  state.shared = shared;
  state.hosted = new WeakMap();
  state.configured += 1;
  if (['info', 'debug'].includes(state.level)) {
    const { version, sdk, store, preferResumable, notices } = status();
    const facts = `sdk=${sdk.join(', ')} store=${store} preferResumable=${preferResumable}`;
    writeLog('info', [`tailrope ${version} is configured: ${facts}`, ...notices].join('; '));
  }
}
