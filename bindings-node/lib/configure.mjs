// The options of this thread's engines.
import { Runtime, state, writeLog } from './runtime.mjs';
import { status } from './status.mjs';

/**
 * Sets the options of the engines of this thread: of the shared one, which serves transports that name no
 * event store, and of those over users' own stores. To be called before the transports are made; called
 * again, it replaces the options for new ones. Throws for options that are wrong.
 */
export function configure(options) {
  const shared = new Runtime(options);
  state.openBefore += state.shared?.engine.stats().sessions ?? 0;
  state.options = { ...options };
  state.shared = shared;
  state.hosted = new WeakMap();
  state.configured += 1;
  if (['info', 'debug'].includes(state.level)) {
    const { version, sdk, store, preferResumable, notices } = status();
    const facts = `sdk=${sdk.join(', ')} store=${store} preferResumable=${preferResumable}`;
    writeLog('info', [`tailrope ${version} is configured: ${facts}`, ...notices].join('; '));
  }
}
