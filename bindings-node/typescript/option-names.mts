// The names of the options of engines, stores, paces and sessions.
import { Engine } from './native.mjs';
import { addHome } from './options.mjs';

export const STORE_OPTIONS = ['durability', 'encryptionKeys', ...Engine.numberOptions(true)];
export const PACE_OPTIONS = Engine.paceOptions();
export const ENGINE_OPTIONS = [
  'identityHeaders',
  'logCalls',
  'logUser',
  'onStoreFailure',
  'pace',
  'principal',
  'relayedHeaders',
  'serverName',
  'store',
  ...Engine.numberOptions(false),
];
/** What every SDK line has of the options of its transports. */
export const SESSION_OPTIONS = [
  'enableJsonResponse',
  'eventStore',
  'onsessionclosed',
  'onsessioninitialized',
  'retryInterval',
  'sessionIdGenerator',
];

addHome('configure()', [...ENGINE_OPTIONS, ...STORE_OPTIONS, 'onUnsupported']);
addHome('a pace, which `pace` takes', PACE_OPTIONS);
addHome('a transport', SESSION_OPTIONS);
addHome('createSessionRouter() and createResumableMcpHandler()', ['onAdopted', 'onerror']);
addHome('createResumableMcpHandler()', ['preferResumable']);
addHome('drain()', ['spreadMs', 'withinMs']);
