/** Status bar item: state of the server, or why the active editor gets no completions. */

import * as vscode from 'vscode';
import * as settings from './settings';
import type { Server } from './server';
import type { Snooze } from './snooze';
import { present, type Silence, type State } from './state';

const BUSY_DELAY_MS = 400; // most requests take less time and are not shown as busy

export class StatusBar implements vscode.Disposable {
    private readonly item = vscode.window.createStatusBarItem('localdflash', vscode.StatusBarAlignment.Right, 100);
    private readonly parts: vscode.Disposable[];
    private timer: NodeJS.Timeout | undefined;

    constructor(
        private readonly server: Server,
        private readonly snooze: Snooze,
    ) {
        this.item.name = 'localdflash';
        this.item.command = 'localdflash.menu';
        const refresh = (): void => this.refresh();
        this.parts = [
            this.item,
            server.onDidChange(refresh),
            snooze.onDidChange(refresh),
            vscode.window.onDidChangeActiveTextEditor(refresh),
            vscode.workspace.onDidOpenTextDocument(refresh), // also fired when a document's language changes
            vscode.workspace.onDidChangeConfiguration(refresh),
        ];
        this.refresh();
        this.item.show();
    }

    dispose(): void {
        clearTimeout(this.timer);
        vscode.Disposable.from(...this.parts).dispose();
    }

    private refresh(): void {
        clearTimeout(this.timer);
        const state = this.server.state;
        if (state.is === 'running' && state.status.busy) {
            this.timer = setTimeout(() => this.show(state), BUSY_DELAY_MS);
            this.show({ ...state, status: { ...state.status, busy: false } });
        } else {
            this.show(state);
        }
    }

    private show(state: State): void {
        const { text, lines, level } = present(state, silence(this.snooze.until));
        this.item.text = text;
        this.item.tooltip = new vscode.MarkdownString().appendText(['localdflash', ...lines].join('\n\n'));
        this.item.accessibilityInformation = { label: ['localdflash', ...lines].join('. ') };
        this.item.backgroundColor =
            level === 'normal' ? undefined : new vscode.ThemeColor(`statusBarItem.${level}Background`);
    }
}

/** Return why the active editor gets no completions; undefined if it gets them. */
function silence(snoozed: Date | undefined): Silence | undefined {
    if (snoozed) {
        const time = snoozed.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
        return { state: `snoozed until ${time}`, why: `Completions are snoozed until ${time}.` };
    }
    const document = vscode.window.activeTextEditor?.document;
    if (!document) {
        return undefined;
    }
    if (!settings.enabledFor(document)) {
        return { state: 'off here', why: `Completions are off for ${document.languageId}.` };
    }
    if (!vscode.workspace.getConfiguration('editor', document).get<boolean>('inlineSuggest.enabled', true)) {
        return { state: 'off here', why: 'The editor shows no inline suggestions: editor.inlineSuggest.enabled is off.' };
    }
    return undefined;
}
