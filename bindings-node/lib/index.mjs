// What belongs to no SDK line.
export { closeSSEStream, closeStandaloneSSEStream } from './close.mjs';
export { openStore } from './open-store.mjs';
export { configure, drain, setLog, stats } from './runtime.mjs';
export { EventStore } from './store.mjs';
