import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseModels } from '../src/model_list';

const ENTRIES = [
    { id: 'large', description: 'A large one', memory_gb: 22, backends: ['cpu'], missing: ['target.gguf'] },
    { id: 'new', description: 'Of a kind that nothing runs', memory_gb: 8, backends: [], missing: [] },
    { id: 'embedded', description: 'A small one', memory_gb: 1, backends: ['cpu', 'torch'], missing: [] },
];

test('downloaded models come first, and models without a backend are left out', () => {
    assert.deepEqual(parseModels(JSON.stringify(ENTRIES)), [
        { label: 'embedded', description: '1 GB of memory, on this machine', detail: 'A small one', missing: false },
        { label: 'large', description: '22 GB of memory, to be downloaded', detail: 'A large one', missing: true },
    ]);
});

test('output that is not a list of models is an error', () => {
    assert.throws(() => parseModels('Usage: localdflash [OPTIONS]'));
    assert.throws(() => parseModels('{}'));
});
