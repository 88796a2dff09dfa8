// What is in force on this thread, as data and as a line of the log.
import { Engine } from './native.mjs';
import { isDisabled } from './platform.mjs';
import { living, sharedRuntime, state } from './runtime.mjs';

/** What is in force on this thread. */
export interface Status {
  /** Of Tailrope. */
  version: string;
  /** The SDKs that it serves under, with their versions where these can be read. */
  sdk: string[];
  /** TAILROPE_DISABLE is set: everything is stock. */
  isDisabled: boolean;
  /** Whose transport serves sessions; null while everything is stock, also under SDKs that Tailrope does not fit under. */
  transport: 'tailrope' | null;
  /** The address of the store of transports that name no event store, without user, password and options. */
  store: string | null;
  /** Whether every `createResumableMcpHandler` steers its clients to a revision that can resume; null without any. */
  preferResumable: boolean | null;
  /** What single servers have of their own: the stores of each `EventStore` that is in use. */
  servers: { store: string }[];
  /** What is unusual, and what it means. */
  notices: string[];
}

/** A handler for both eras is there, until what this returns is called. */
export function noteHandler(preferResumable: boolean): () => void {
  const handler = { preferResumable };
  state.handlers.add(handler);
  return () => void state.handlers.delete(handler);
}

/** What is in force on this thread. `configure()` logs the same at `info`. */
export function status(): Status {
  const seams = [...state.seams.values()];
  const different = seams.flatMap((seam) => seam.notice ?? []);
  const disabled = isDisabled();
  const isServed = !disabled && (seams.length === 0 || different.length < seams.length);
  const handlers = [...state.handlers];
  const eventStores = [...living()].filter(({ isOfEventStore }) => isOfEventStore);
  return {
    version: Engine.version(),
    sdk: seams.map((seam) => seam.found),
    isDisabled: disabled,
    transport: isServed ? 'tailrope' : null,
    store: disabled ? null : (sharedRuntime().store?.address ?? null),
    preferResumable: handlers.length === 0 ? null : handlers.every(({ preferResumable }) => preferResumable),
    servers: eventStores.flatMap(({ store }) => (store === undefined ? [] : { store: store.address })),
    notices: disabled ? [] : [...different, ...notices(eventStores.length)],
  };
}

function notices(eventStores: number): string[] {
  const found: string[] = [];
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
