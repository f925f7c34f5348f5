/** Silence for a while: no completions that nobody asks for, in this window. */

import * as vscode from 'vscode';

const MINUTES = [5, 15, 30, 60];

export class Snooze implements vscode.Disposable {
    private readonly changed = new vscode.EventEmitter<void>();
    readonly onDidChange = this.changed.event;
    private timer: NodeJS.Timeout | undefined;
    private end: Date | undefined;

    /** When it ends; undefined while there is none. */
    get until(): Date | undefined {
        return this.end;
    }

    /** Ask for how long, and begin. */
    async begin(): Promise<void> {
        const items = MINUTES.map((minutes) => ({ label: `${minutes} minutes`, minutes }));
        const chosen = await vscode.window.showQuickPick(items, { title: 'No completions for' });
        if (chosen) {
            this.set(chosen.minutes);
        }
    }

    wake(): void {
        this.set(0);
    }

    dispose(): void {
        clearTimeout(this.timer);
        this.changed.dispose();
    }

    private set(minutes: number): void {
        clearTimeout(this.timer);
        const milliseconds = minutes * 60_000;
        this.end = minutes ? new Date(Date.now() + milliseconds) : undefined;
        this.timer = minutes ? setTimeout(() => this.wake(), milliseconds) : undefined;
        if (minutes) {
            void vscode.commands.executeCommand('editor.action.inlineSuggest.hide');
        }
        this.changed.fire();
    }
}
