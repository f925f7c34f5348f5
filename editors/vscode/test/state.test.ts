import assert from 'node:assert/strict';
import { test } from 'node:test';
import { isOn, present, RestartLimit, UNKNOWN } from '../src/state';

test('the item names the model and its state', () => {
    const fresh = present({ is: 'running', status: UNKNOWN });
    assert.deepEqual(fresh, { text: '$(zap) localdflash: ready', lines: ['Ready.'], level: 'normal' });
    const status = { ...UNKNOWN, tau: 3.24, tokensPerSecond: 57.6, model: 'qwen3-8b', shown: 8, accepted: 2 };
    const shown = present({ is: 'running', status });
    assert.equal(shown.text, '$(zap) qwen3-8b: ready');
    assert.deepEqual(shown.lines, [
        'Model: qwen3-8b',
        '57.6 tokens per second, 3.24 tokens per pass of the model (τ)',
        '8 suggestions shown, 2 accepted (25 %)',
    ]);
    assert.equal(present({ is: 'running', status: { ...status, busy: true } }).text, '$(loading~spin) qwen3-8b: thinking');
    assert.equal(present({ is: 'off' }).text, '$(circle-slash) localdflash: off');
    assert.equal(present({ is: 'starting' }).text, '$(loading~spin) localdflash: starting');
});

test('an error comes first and has a colour', () => {
    const status = { ...UNKNOWN, kind: 'Error', message: 'the model is not here' } as const;
    assert.deepEqual(present({ is: 'running', status }), {
        text: '$(error) localdflash: error',
        lines: ['the model is not here'],
        level: 'error',
    });
    const failed = present({ is: 'failed', reason: 'not found' });
    assert.deepEqual(failed, { text: '$(error) localdflash: not running', lines: ['not found'], level: 'error' });
});

test('the reason for no completions is shown instead of work', () => {
    const busy = { is: 'running', status: { ...UNKNOWN, busy: true, model: 'embedded' } } as const;
    const silent = present(busy, { state: 'off here', why: 'Completions are off for markdown.' });
    assert.equal(silent.text, '$(circle-slash) embedded: off here');
    assert.deepEqual(silent.lines, ['Completions are off for markdown.', 'Model: embedded']);
    const ignored = { ...UNKNOWN, kind: 'Inactive', message: '.gitignore names it', model: 'embedded' } as const;
    const shown = present({ is: 'running', status: ignored });
    assert.equal(shown.text, '$(circle-slash) embedded: silent here');
    assert.equal(shown.lines[0], '.gitignore names it');
});

test('after five exits within three minutes the server stays down', () => {
    const limit = new RestartLimit();
    assert.deepEqual([0, 1, 2, 3, 4].map((ms) => limit.recordExit(ms)), [true, true, true, true, false]);
});

test('exits that are far apart do not add up', () => {
    const limit = new RestartLimit();
    for (let count = 0; count < 20; count++) {
        assert.ok(limit.recordExit(count * RestartLimit.WINDOW_MS * 0.26));
    }
});

test('a language is on unless it, or all others, are off', () => {
    assert.ok(isOn({}, 'python'));
    assert.ok(isOn({ '*': true, markdown: false }, 'python'));
    assert.ok(!isOn({ '*': true, markdown: false }, 'markdown'));
    assert.ok(isOn({ '*': false, python: true }, 'python'));
    assert.ok(!isOn({ '*': false, python: true }, 'toString'));
});
