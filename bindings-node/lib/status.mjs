// What is in force on this thread, as data and as a line of the log.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

import { Engine } from './native.mjs';
import { isDisabled } from './platform.mjs';
import { living, sharedRuntime, state } from './runtime.mjs';

/** An SDK is in use. */
export function noteSdk(name) {
  state.sdks.add(name);
}

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
  const disabled = isDisabled();
  const handlers = [...state.handlers];
  const eventStores = [...living()].filter(({ isOfEventStore }) => isOfEventStore);
  return {
    version: Engine.version(),
    sdk: [...state.sdks].map((name) => [name, versionOf(name)].filter(Boolean).join(' ')),
    isDisabled: disabled,
    transport: disabled ? null : 'tailrope',
    store: disabled ? null : sharedRuntime().store.address,
    preferResumable: handlers.length === 0 ? null : handlers.every(({ preferResumable }) => preferResumable),
    eventStores: eventStores.map(({ store }) => ({ store: store.address })),
    notices: disabled ? [] : notices(eventStores.length),
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

/** The version of an installed package; nothing where that cannot be told, as in a bundle. */
function versionOf(name) {
  try {
    for (const folder of createRequire(import.meta.url).resolve.paths(name)) {
      try {
        return JSON.parse(readFileSync(join(folder, name, 'package.json'), 'utf8')).version;
      } catch {
        // It may be in the next one.
      }
    }
  } catch {
    // Nothing can be looked up from here.
  }
  return undefined;
}
