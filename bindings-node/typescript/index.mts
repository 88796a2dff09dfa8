// What belongs to no SDK line.
export { configure } from './configure.mjs';
export { type DrainOptions, drain } from './drain.mjs';
export type { ConfigureOptions, EngineOptions } from './engine-options.mjs';
export { type ErrorCode, type ErrorDetails, TailropeError } from './errors.mjs';
export type { PaceOptions } from './pace.mjs';
export { type LogFields, type LogLevel, type LogSink, setLog } from './runtime.mjs';
export { type CloseOptions, closeSSEStream, closeStandaloneSSEStream, type HandlerContext } from './server/close.mjs';
export type { Principal } from './server/requester.mjs';
export type { OwnOptions } from './server/transport-options.mjs';
export { type Status, status } from './status.mjs';
export { EventStore } from './store/event-store.mjs';
export { openStore, type Store, type StoreOptions } from './store/open.mjs';
export type { ReplaySender } from './store/user-store.mjs';
export { type Condition, type Health, health, live, metrics, metricsEndpoint, readyz, stats } from './watching.mjs';
