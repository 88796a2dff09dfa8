// What belongs to no SDK line.
export { closeSSEStream, closeStandaloneSSEStream } from './close.mjs';
export { configure } from './configure.mjs';
export { openStore } from './open-store.mjs';
export { drain, setLog, stats } from './runtime.mjs';
export { status } from './status.mjs';
export { EventStore } from './store.mjs';
