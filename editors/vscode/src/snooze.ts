/** Snooze: no automatic completions and no next edits in this window for some minutes. */

import * as vscode from 'vscode';

const MINUTES = [5, 15, 30, 60];

export class Snooze implements vscode.Disposable {
    private readonly changed = new vscode.EventEmitter<void>();
    readonly onDidChange = this.changed.event;
    private timer: NodeJS.Timeout | undefined;
    private end: Date | undefined;

    /** The end of the snooze; undefined if not snoozing. */
    get until(): Date | undefined {
        return this.end;
    }

    /** Ask the user for a duration, and begin the snooze. */
    async begin(): Promise<void> {
        const items = MINUTES.map((minutes) => ({ label: `${minutes} minutes`, minutes }));
        const chosen = await vscode.window.showQuickPick(items, { title: 'Snooze completions for' });
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
