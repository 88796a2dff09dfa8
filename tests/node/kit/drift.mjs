// Other versions of the SDKs, made from the sources of the installed ones while they are loaded.
//
//   node --import ./kit/drift.mjs PROGRAM      (TAILROPE_TEST_DRIFT in the environment says which)
import { register } from 'node:module';
import { isMainThread } from 'node:worker_threads';

const SDK = '/@modelcontextprotocol/sdk/dist/esm/';
const NODE_V1 = `${SDK}server/streamableHttp.js`;
const WEB_V1 = `${SDK}server/webStandardStreamableHttp.js`;
const SERVER = '/@modelcontextprotocol/server/dist/index.mjs';
export const OF_V1 = 'StreamableHTTPServerTransport';
export const OF_WEB = 'WebStandardStreamableHTTPServerTransport';

const optionMore = [
  'this.sessionIdGenerator = options.sessionIdGenerator;',
  '(globalThis.anotherOption ??= []).push(options.another);',
];
const attribute = ['_streamMapping', '_streamsOfRequests'];

/** As a tracing library does it. */
const traced = (name) => `
  const startOf${name} = ${name}.prototype.start;
  ${name}.prototype.start = function (...args) {
    (globalThis.traced ??= []).push('${name}');
    return startOf${name}.apply(this, args);
  };
`;

// By what a module's address contains: what of its source is replaced by what, everywhere. An empty text stands for the end.
export const DRIFTS = {
  'an option more': {
    [WEB_V1]: [[optionMore[0], optionMore.join('')]],
    [SERVER]: [[optionMore[0], optionMore.join('')]],
  },
  'an attribute of another name': { [WEB_V1]: [attribute], [SERVER]: [attribute] },
  'a wrapped method': {
    [NODE_V1]: [['', traced(OF_V1)]],
    [WEB_V1]: [['', traced(OF_WEB)]],
    [SERVER]: [['', traced(OF_WEB)]],
  },
  'a function of another name': {
    [SDK]: [['isInitializeRequest', 'opensSession']],
    [SERVER]: [[' isInitializeRequest, isInitializedNotification', ' isInitializedNotification']],
  },
};

const wanted = process.env.TAILROPE_TEST_DRIFT;
let drift;

/** Called on the thread of the hooks. */
export function initialize(name) {
  drift = Object.entries(DRIFTS[name]);
}

export async function load(url, context, nextLoad) {
  const loaded = await nextLoad(url, context);
  const [place, changes] = drift?.find(([part]) => url.includes(part)) ?? ['', []];
  let source = changes.length > 0 ? String(loaded.source) : loaded.source;
  for (const [old, other] of changes) {
    if (place !== SDK && !source.includes(old)) {
      throw new Error(`${url} has no ${old}`);
    }
    source = old === '' ? source + other : source.replaceAll(old, other);
  }
  return { ...loaded, source };
}

// The thread of the hooks loads this, too.
if (wanted !== undefined && isMainThread) {
  register(import.meta.url, { data: wanted });
}
