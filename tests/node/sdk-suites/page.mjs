// DEVIATIONS.md, made from deviations.json and outcome.json.
import { LINES } from './lines.mjs';

const HEAD = `# Tailrope's transports under the SDK's own tests

\`tests/node/sdk-suites/run\` runs the tests of the TypeScript SDK that construct a server transport, with Tailrope's
classes in place of the SDK's. They are run from a checkout of the SDK, unchanged: *server* and *node* are the unit
tests of the transports, *integration* and *e2e* the scenarios over streamable HTTP.
`;

const EXPLAINED = `- *deviate*: these fail, and are to fail. They assert a fault that Tailrope is there to fix,
  something that an invariant rules out, or a choice that Tailrope makes differently. Each is listed below with its
  reason.
- *either*: these pass or not. The priming event leaves on its own when no message comes within 5 ms, and the outcome
  depends on whether the test's next step is faster.

On the SDK's own classes all cases pass (\`--stock\`). The runner fails when another case fails, or when one passes
that is listed to deviate. I-n are the invariants in ARCHITECTURE.md, F-nn the faults in docs/evidence/stock-faults.md. This
page is written by \`run deviations\`: what it says is in \`sdk-suites/deviations.json\` and, by \`--record\`, in
\`sdk-suites/outcome.json\`.
`;

/** `reasons` says why, by name; `lines` has the cases: line, suite, file, test, reason; `outcome` has the counts. */
export function deviationsPage(reasons, lines, outcome) {
  const sections = Object.entries(reasons).map(([reason, { title, asserts, ours, see }]) => {
    const cases = [...casesOf(reason, lines)].map(([name, count]) => name + (count > 1 ? ` (${count} variants)` : ''));
    const list = cases.map((name) => `- ${name}\n`).join('');
    const heading = `## ${title} (${see.join(', ')})`;
    return [heading, wrap(`Asserted: ${asserts}`), wrap(`Ours: ${ours}`), list].join('\n\n');
  });
  return [HEAD, countsTable(outcome), EXPLAINED, ...sections].join('\n');
}

function countsTable(outcome) {
  const rows = [];
  const total = { ran: 0, passed: 0, deviating: 0, either: 0 };
  for (const [line, { packages, suites }] of Object.entries(outcome)) {
    for (const suite of Object.keys(LINES[line].suites)) {
      const counts = suites[suite];
      if (counts.stockPassed !== counts.ran) {
        throw new Error(`${line} ${suite}: record it with --stock too; ${counts.stockPassed} of ${counts.ran} passed`);
      }
      Object.keys(total).forEach((key) => (total[key] += counts[key]));
      rows.push([packages.join(', '), `${line} ${suite}`, counts]);
    }
  }
  rows.push(['both', 'all', total]);
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

function wrap(text) {
  return text.replace(/(?=.{121})(.{1,120}) /g, '$1\n');
}
