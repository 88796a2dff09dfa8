// A client of the conformance suite: node conformance.mjs v1|v2 [--stock] URL, with the scenario's name in the environment.
import { connect } from './connect.mjs';

// What the suite's servers offer and expect to be called; `initialize` expects no call.
const CALLS = {
  tools_call: { name: 'add_numbers', arguments: { a: 2, b: 3 } },
  'sse-retry': { name: 'test_reconnection', arguments: {} },
};

// The suite warns where a pause of 500 ms takes over 700, and that much a busy machine may need for itself.
const LINE = { jitter: 0 };

const nothing = () => {};
const ours = process.argv.includes('--stock') ? undefined : LINE;
const hooks = { onLog: nothing, onAsk: nothing, onError: nothing };
const { client, callTool, close } = await connect(process.argv[2], process.argv.at(-1), ours, hooks);
await client.listTools();
const call = CALLS[process.env.MCP_CONFORMANCE_SCENARIO];
if (call !== undefined) {
  await callTool(call);
}
await close();
process.exit();
