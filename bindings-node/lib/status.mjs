// What is in force on this thread, as data and as a line of the log.
import { Engine } from './native.mjs';
import { isDisabled } from './platform.mjs';
import { living, sharedRuntime, state } from './runtime.mjs';

/** A handler for both eras is there, until what this returns is called. */
export function noteHandler(preferResumable) {
  const handler = { preferResumable };
  state.handlers.add(handler);
  return () => state.handlers.delete(handler);
}

/**
 * What is in force on this thread: the SDKs and their versions, with which store sessions are served, and whether
 * clients are steered to a revision that can resume.
 */
export function status() {
  const seams = [...state.seams.values()];
  const different = seams.map((seam) => seam.notice).filter(Boolean);
  const disabled = isDisabled();
  const isServed = !disabled && (seams.length === 0 || different.length < seams.length);
  const handlers = [...state.handlers];
  const eventStores = [...living()].filter(({ isOfEventStore }) => isOfEventStore);
  return {
    version: Engine.version(),
    sdk: seams.map((seam) => seam.found),
    isDisabled: disabled,
    transport: isServed ? 'tailrope' : null,
    store: disabled ? null : sharedRuntime().store.address,
    preferResumable: handlers.length === 0 ? null : handlers.every(({ preferResumable }) => preferResumable),
    servers: eventStores.map(({ store }) => ({ store: store.address })),
    notices: disabled ? [] : [...different, ...notices(eventStores.length)],
  };
}

function notices(eventStores) {
  const found = [];
  if (state.configured > 1) {
    found.push(
      `configure() was called ${state.configured} times: the last call's options hold for transports made since, and ` +
        'sessions that were open before keep theirs',
    );
  }
  if (state.configured > 0 && eventStores > 0) {
    found.push(
      `${eventStores} EventStore beside configure(): a transport that was given one takes its store and options from ` +
        'there, not from configure()',
    );
  }
  if (state.openBefore > 0) {
    found.push(
      `${state.openBefore} sessions were open before configure(): they keep the store and the options that they had. ` +
        'Call configure() before the server starts',
    );
  }
  return found;
}
