// DEVIATIONS.md, made from deviations.json and outcome.json.

const HEAD = `# Tailrope's transports under the SDK's own tests

\`tests/node/sdk-suites/run\` runs the tests of the TypeScript SDK that construct a server transport, with Tailrope's
classes in place of the SDK's. They are run from a checkout of the SDK, unchanged.
`;

const EXPLAINED = `- *deviates*: the case fails, and is to fail. It asserts a fault that Tailrope is there to fix, or something that an
  invariant rules out. Each is listed below under its reason.
- *either*: the case passes or not, by how many real milliseconds pass while the test's own clock stands still.

On the SDK's own classes all cases pass (\`--stock\`). The runner fails when another case fails, or when one passes that is
listed to deviate. I-n are the invariants in ARCHITECTURE.md, F-nn the faults in docs/stock-faults.md. This page is
written by \`run deviations\`: what it says is in \`sdk-suites/deviations.json\` and, by \`--record\`, in
\`sdk-suites/outcome.json\`.
`;

/** `reasons` says why, by name; `lines` has the cases: line, suite, file, test, reason; `outcome` has the counts. */
export function deviationsPage(reasons, lines, outcome) {
  const sections = Object.entries(reasons).map(([reason, { title, asserts, ours, see }]) => {
    const cases = [...casesOf(reason, lines)].map(([name, count]) => `- ${name}${count > 1 ? ` (${count} variants)` : ''}`);
    return `## ${title} (${see.join(', ')})\n\nAsserted: ${asserts}\n\nOurs: ${ours}\n\n${cases.join('\n')}\n`;
  });
  return [HEAD, countsTable(outcome), EXPLAINED, ...sections].join('\n');
}

function countsTable(outcome) {
  const rows = [];
  const total = { ran: 0, passed: 0, deviating: 0, either: 0 };
  for (const [line, { packages, suites }] of Object.entries(outcome)) {
    for (const [suite, counts] of Object.entries(suites)) {
      if (counts.stockPassed !== counts.ran) {
        throw new Error(`${line} ${suite}: record it with --stock too; ${counts.stockPassed} of ${counts.ran} passed`);
      }
      Object.keys(total).forEach((key) => (total[key] += counts[key]));
      rows.push([packages.join(', '), `${line} ${suite}`, counts]);
    }
  }
  rows.push(['', 'all', total]);
  const lines = rows.map(
    ([packages, suite, { ran, passed, deviating, either }]) =>
      `| ${packages} | ${suite} | ${ran} | ${passed} | ${deviating} | ${either} |`,
  );
  return ['| SDK | suite | ran | pass | deviate | either |', '|---|---|---|---|---|---|', ...lines, ''].join('\n');
}

/** How many variants of a case (zod versions, protocol columns) have this reason. */
function casesOf(reason, lines) {
  const counts = new Map();
  for (const [line, suites] of Object.entries(lines)) {
    for (const [suite, files] of Object.entries(suites)) {
      for (const [test, entry] of Object.values(files).flatMap(Object.entries)) {
        if ((entry.either ?? entry) === reason) {
          const plain = test.replace(/^'?Zod v\d'? /, '').replace(/ \[streamableHttp .*/, '');
          const name = `${line} ${suite}: ${plain}${entry.either ? ' (either)' : ''}`;
          counts.set(name, (counts.get(name) ?? 0) + 1);
        }
      }
    }
  }
  return counts;
}
