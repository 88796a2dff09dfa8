// What a checkout of each SDK line has: its test folders, and the modules whose classes are swapped.

const WEB = 'WebStandardStreamableHTTPServerTransport';

const v1 = {
  ours: 'server/mcp-v1.mjs',
  packages: ['.'],
  modules: {
    'src/server/streamableHttp.ts': ['StreamableHTTPServerTransport'],
    'src/server/webStandardStreamableHttp.ts': [WEB],
  },
  isSource: (file) => file.startsWith('src/'),
  sourceOf(name) {
    const [, path] = /^@modelcontextprotocol\/sdk\/(.*)\.js$/.exec(name) ?? [];
    return path && `src/${path}.ts`;
  },
  // Its own configuration is in TypeScript, which a configuration of ours cannot import.
  config: {
    test: { globals: true, environment: 'node', setupFiles: ['./vitest.setup.ts'], include: ['test/**/*.test.ts'] },
  },
  suites: {
    server: { folder: '.', files: ['test/server/streamableHttp', 'test/server/contentTypeValidation'] },
    integration: {
      folder: '.',
      files: ['stateManagementStreamableHttp', 'taskLifecycle', 'taskResumability'],
    },
    e2e: { folder: '.', files: ['test/e2e/scenarios'], pattern: 'streamableHttp|hosting:' },
  },
};

const SERVER = 'packages/server/src/index.ts';
const NODE = 'packages/middleware/node/src/index.ts';

const v2 = {
  ours: 'server/mcp.mjs',
  packages: ['packages/server', 'packages/middleware/node'],
  modules: {
    [SERVER]: [WEB],
    'packages/server/src/server/streamableHttp.ts': [WEB],
    [NODE]: ['NodeStreamableHTTPServerTransport'],
    'packages/middleware/node/src/streamableHttp.ts': ['NodeStreamableHTTPServerTransport'],
  },
  isSource: (file) => /^packages\/([^/]+\/){1,2}src\//.test(file),
  sourceOf: (name) => ({ '@modelcontextprotocol/server': SERVER, '@modelcontextprotocol/node': NODE })[name],
  suites: {
    server: {
      folder: 'packages/server',
      files: ['streamableHttp', 'contentTypeValidation', 'classificationCarrierPin', 'eraParityErrorShapes'],
    },
    node: { folder: 'packages/middleware/node', files: ['streamableHttp'] },
    integration: {
      folder: 'test/integration',
      files: ['stateManagementStreamableHttp', 'transportResumability', 'discoverRoundtrip', 'versionNegotiation'],
    },
    e2e: { folder: 'test/e2e', files: ['scenarios'], pattern: 'streamableHttp|hosting:' },
  },
};

export const LINES = { v1, v2 };
