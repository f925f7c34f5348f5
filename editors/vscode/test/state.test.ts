import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Endings, isOn, present, UNKNOWN } from '../src/state';

test('figures appear when there are some', () => {
    const fresh = present({ is: 'running', status: UNKNOWN }, '');
    assert.deepEqual(fresh, { text: '$(zap) localdflash', lines: ['Ready.'], level: 'normal' });
    const status = { ...UNKNOWN, tau: 3.24, tokensPerSecond: 57.6, model: 'qwen3-8b', shown: 8, accepted: 2 };
    const shown = present({ is: 'running', status }, '');
    assert.equal(shown.text, '$(zap) τ 3.2 · 58 tok/s');
    assert.deepEqual(shown.lines, [
        'Model: qwen3-8b',
        '57.6 tokens per second, 3.24 for each pass of the model (τ)',
        '8 suggestions shown, 2 accepted (25 %)',
    ]);
});

test('plain decoding has no τ', () => {
    const status = { ...UNKNOWN, tokensPerSecond: 12 };
    assert.equal(present({ is: 'running', status }, '').text, '$(zap) 12 tok/s');
});

test('what is wrong comes first and has a colour', () => {
    const status = { ...UNKNOWN, kind: 'Error', message: 'the model is not here' } as const;
    assert.deepEqual(present({ is: 'running', status }, ''), {
        text: '$(error) localdflash',
        lines: ['the model is not here'],
        level: 'error',
    });
    assert.equal(present({ is: 'failed', reason: 'not found' }, '').level, 'error');
});

test('silence in this editor is shown, work is too', () => {
    const busy = { is: 'running', status: { ...UNKNOWN, busy: true } } as const;
    assert.match(present(busy, '').text, /loading/);
    assert.match(present(busy, 'off for markdown').text, /circle-slash/);
    assert.deepEqual(present(busy, 'off for markdown').lines, ['off for markdown']);
});

test('five endings within three minutes are enough', () => {
    const endings = new Endings();
    assert.deepEqual([0, 1, 2, 3, 4].map((time) => endings.add(time)), [true, true, true, true, false]);
});

test('endings that are far apart do not add up', () => {
    const endings = new Endings();
    for (let count = 0; count < 20; count++) {
        assert.ok(endings.add(count * Endings.WINDOW * 0.26));
    }
});

test('a language is on unless it, or all others, are off', () => {
    assert.ok(isOn({}, 'python'));
    assert.ok(isOn({ '*': true, markdown: false }, 'python'));
    assert.ok(!isOn({ '*': true, markdown: false }, 'markdown'));
    assert.ok(isOn({ '*': false, python: true }, 'python'));
    assert.ok(!isOn({ '*': false, python: true }, 'toString'));
});
