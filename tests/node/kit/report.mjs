// A reporter of the test runner for ../table.mjs: a line of JSON for each test.
export default async function* report(events) {
  for await (const { type, data } of events) {
    if ((type === 'test:pass' || type === 'test:fail') && data.details?.type !== 'suite') {
      const { name, skip } = data;
      yield `${JSON.stringify({ name, passed: type === 'test:pass', skipped: skip !== undefined })}\n`;
    }
  }
}
