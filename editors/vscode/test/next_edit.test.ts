import assert from 'node:assert/strict';
import { test } from 'node:test';
import { NextEditState, endOf, type Cursor, type NextEdit } from '../src/next_edit';

const URI = 'file:///a.py';
const PROPOSAL: NextEdit = {
    textDocument: { uri: URI, version: 3 },
    edit: { range: { start: { line: 5, character: 4 }, end: { line: 5, character: 9 } }, newText: 'total' },
};

function at(line: number, character: number, version = 3, uri = URI): Cursor {
    return { uri, version, place: { line, character } };
}

function proposed(): NextEditState {
    const state = new NextEditState();
    state.propose(PROPOSAL);
    return state;
}

test('Tab goes to the range, and accepts there', () => {
    const state = proposed();
    assert.equal(state.step(at(0, 0)), 'go');
    assert.equal(state.step(at(5, 3)), 'go');
    assert.equal(state.step(at(5, 10)), 'go');
    assert.equal(state.step(at(5, 4)), 'accept');
    assert.equal(state.step(at(5, 9)), 'accept');
    assert.equal(state.step(undefined), 'nothing');
});

test('a proposal may have several lines', () => {
    const state = new NextEditState();
    state.propose({
        ...PROPOSAL,
        edit: { range: { start: { line: 5, character: 4 }, end: { line: 7, character: 1 } }, newText: 'a\nbc' },
    });
    const steps = [at(5, 3), at(5, 4), at(6, 90), at(7, 1), at(7, 2)].map((cursor) => state.step(cursor));
    assert.deepEqual(steps, ['go', 'accept', 'accept', 'accept', 'go']);
    assert.deepEqual(endOf('a\r\nbc', { line: 5, character: 4 }), { line: 6, character: 2 });
    assert.deepEqual(endOf('bc', { line: 5, character: 4 }), { line: 5, character: 6 });
});

test('a proposal is for one version of one document', () => {
    const state = proposed();
    assert.equal(state.showing(at(0, 0)), 'shown');
    assert.equal(state.showing(at(0, 0, 4)), 'none');
    assert.equal(state.showing(at(0, 0, 3, 'file:///b.py')), 'none');
    assert.equal(state.showing(undefined), 'none');
    assert.equal(state.step(at(5, 4, 4)), 'nothing');
});

test('a change drops the proposal, and undo does not restore it', () => {
    const state = proposed();
    state.changed('file:///b.py', 9);
    state.changed(URI, 3); // saving is reported as a change with the same version
    assert.equal(state.proposal, PROPOSAL);
    state.changed(URI, 4);
    assert.equal(state.proposal, undefined);
    assert.equal(state.showing(at(0, 0)), 'none');
});

test('a proposal is hidden while a completion is shown', () => {
    const state = proposed();
    state.completion(at(2, 7), 1);
    assert.equal(state.showing(at(2, 7)), 'hidden');
    assert.equal(state.step(at(2, 7)), 'nothing');
    assert.equal(state.showing(at(2, 8)), 'shown'); // the cursor left it
    state.completionGone();
    assert.equal(state.showing(at(2, 7)), 'shown');
});

test('an answer without completions hides nothing', () => {
    const state = proposed();
    state.completion(at(2, 7), 1);
    state.completion(at(2, 7), 0);
    assert.equal(state.showing(at(2, 7)), 'shown');
});
