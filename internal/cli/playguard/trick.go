package playguard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/uid"
)

// tricks are the verbs of tricks.
type tricks struct{ *app }

// Trick is "fuse trick" with its verbs.
func Trick(t kit.Tools) *cobra.Command {
	a := tricks{&app{Tools: t}}
	cmd := &cobra.Command{
		Use: "trick", Aliases: []string{"tricks"}, Short: "Compose files that run to their end, now or by a schedule", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	schedule := &cobra.Command{
		Use: "schedule", Aliases: []string{"schedules"}, Short: "Run tricks by the clock", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	schedule.AddCommand(a.addSchedule(), a.listSchedules(), a.getSchedule(), a.actOnSchedule("pause", "Stop a schedule from starting tricks"),
		a.actOnSchedule("resume", "Let a schedule go on with what is due from now on"), a.fire(), a.removeSchedule())
	cmd.AddCommand(a.run(), a.list(), a.get(), a.trickLogs(), a.cancel(), a.remove(), schedule)
	return cmd
}

// call is a verb of tricks.
func (a tricks) call(use, short string, args cobra.PositionalArgs, do func(cmd *cobra.Command, t client.Tricks, args []string) error) *cobra.Command {
	return onServer(a.app, use, short, args, func(cmd *cobra.Command, server *client.API, args []string) error {
		return do(cmd, client.NewTricks(server), args)
	})
}

// job are the flags of what runs as a trick.
type job struct {
	upping
	retries                 int
	backoff, deadline, keep time.Duration
}

func (j *job) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&j.marquee, "marquee", "m", "", "`marquee` to run on (default: the only one)")
	f.StringArrayVar(&j.vars, "var", nil, "fill in a variable, `NAME=value` (repeatable)")
	f.StringVar(&j.envFile, "env-file", "", "`file` with variables, one NAME=value a line")
	f.BoolVar(&j.keepVolumes, "keep-volumes", false, "leave the named volumes when it is done")
	f.IntVar(&j.retries, "retries", 0, "further attempts after one that failed")
	f.DurationVar(&j.backoff, "backoff", 10*time.Second, "wait before the first of them, then twice as long each time")
	f.DurationVar(&j.deadline, "deadline", time.Hour, "of all attempts together; 0 is none")
	f.DurationVar(&j.keep, "keep", 7*24*time.Hour, "how long its record and logs are kept; 0 is until it is removed")
	policyFlag(cmd, &j.policy)
}

// request reads what runs: a directory, or a compose file in one.
func (j *job) request(path string) (gen.UpPlayground, error) {
	dir := path
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		dir, j.file = filepath.Dir(path), path
	}
	return j.upping.request(dir)
}

// wireSeconds is a limit as the wire has it: none is -1.
func wireSeconds(d time.Duration) int64 {
	if d <= 0 {
		return -1
	}
	return kit.WholeSeconds(d)
}

func (a tricks) run() *cobra.Command {
	j := &job{upping: upping{app: a.app}}
	var detach, quiet bool
	var wait bool
	cmd := a.call("run FILE|DIR", "Run a compose file to its end and exit with its code", cobra.ExactArgs(1), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		up, err := j.request(args[0])
		if err != nil {
			return err
		}
		if j.name == "" {
			id := strings.ToLower(uid.New())
			up.Name += "-" + id[len(id)-6:]
		}
		k, err := t.Run(cmd.Context(), gen.RunTrick{
			Name: up.Name, Marquee: up.Marquee, Compose: up.Compose, Files: up.Files, Variables: up.Variables, Policy: up.Policy, KeepVolumes: up.KeepVolumes,
			Retries: j.retries, BackoffSeconds: kit.WholeSeconds(j.backoff), DeadlineSeconds: wireSeconds(j.deadline), KeepSeconds: wireSeconds(j.keep),
		})
		if err != nil {
			return err
		}
		if detach || !wait {
			return a.showTrick(k, nil)
		}
		return a.await(cmd.Context(), t, k, quiet)
	})
	cmd.Long = "run sends the compose file and what it uses, runs it on a marquee, waits for its end,\n" +
		"prints what it wrote, and exits with the code of its job: of the service that says\n" +
		"x-fuse: {job: true}, or of the only one. 124 is its deadline, 125 that it could not be\n" +
		"started, 130 that it was cancelled, 137 that its host went down. ^C leaves it running."
	j.register(cmd)
	f := cmd.Flags()
	f.StringVarP(&j.name, "name", "n", "", "`name` of the trick (default: the directory's, and six letters)")
	f.BoolVar(&wait, "wait", true, "wait for its end")
	f.BoolVarP(&detach, "detach", "d", false, "do not wait for its end")
	f.BoolVarP(&quiet, "no-logs", "", false, "do not print what it wrote")
	return cmd
}

// await waits for the end of a trick and passes its code on.
func (a tricks) await(ctx context.Context, t client.Tricks, k gen.Trick, quiet bool) error {
	said, misses := "", 0
	for !k.Done {
		if now := trickState(k); now != said {
			said = now
			a.Progress("%s: %s", k.Name, now)
		}
		next, err := t.Get(ctx, k.ID, waitStep)
		switch {
		case err == nil:
			k, misses = next, 0
		case ctx.Err() != nil:
			a.Progress("it goes on; see 'fuse trick get %s'", k.Name)
			return ctx.Err()
		case misses < maxMisses && (client.CodeOf(err) == "unavailable" || client.CodeOf(err) == ""):
			misses++
			pause(ctx)
		default:
			return err
		}
	}
	format, err := a.Format()
	if err != nil {
		return err
	}
	last := gen.TrickAttempt{}
	if n := len(k.Attempts); n > 0 {
		last = k.Attempts[n-1]
	}
	switch {
	case format != "table" && format != "":
		err = a.showTrick(k, nil)
	case !quiet && last.Logs == "kept":
		err = t.Logs(ctx, k.ID, gen.TrickLogsParams{Attempt: &last.N}, a.Out)
	}
	if err != nil {
		return err
	}
	a.Progress("%s: %s", k.Name, trickState(k))
	if k.Code == nil || *k.Code == 0 {
		return nil
	}
	code := *k.Code
	if code < 1 || code > 255 {
		code = 1
	}
	return a.Exit(code, nil)
}

func trickState(k gen.Trick) string {
	text := k.State
	if k.Attempt > 1 || k.Retries > 0 {
		text += fmt.Sprintf(", attempt %d of %d", k.Attempt, k.Retries+1)
	}
	if k.Code != nil {
		text += fmt.Sprintf(", code %d", *k.Code)
		if last := k.Attempts[len(k.Attempts)-1]; last.Why != "" {
			text += " (" + last.Why + ")"
		}
	} else if why := failureText(k.Failure); why != "" {
		text += ": " + why
	}
	return text
}

func (a tricks) showTrick(k gen.Trick, err error) error {
	if err != nil {
		return err
	}
	return a.show(k, k.ID, func() error {
		fields := [][2]string{
			{"name", k.Name}, {"id", k.ID}, {"state", trickState(k) + ", since " + a.since(k.StateSince)}, {"reason", k.Reason}, {"failure", failureText(k.Failure)},
			{"attention", k.Attention}, {"ending", k.Ending}, {"marquee", a.marqueeName(k.Marquee)}, {"project", k.Project}, {"owner", k.Owner}, {"job", strings.Join(k.Watch, ", ")},
			{"deadline", limitText(k.DeadlineSeconds)}, {"kept for", limitText(k.KeepSeconds)}, {"schedule", k.Schedule},
		}
		for _, t := range k.Attempts {
			text := fmt.Sprintf("code %d, %s", t.Code, a.since(t.At))
			if t.Why != "" {
				text += ": " + t.Why
			}
			if t.Logs != "" {
				text += "; logs " + t.Logs
			}
			fields = append(fields, [2]string{"attempt " + strconv.Itoa(t.N), text})
		}
		return a.Sheet(a.Out, fields)
	})
}

func limitText(seconds int64) string {
	if seconds <= 0 {
		return ""
	}
	return (time.Duration(seconds) * time.Second).String()
}

func (a tricks) list() *cobra.Command {
	var schedule string
	var active bool
	cmd := a.call("ls", "List tricks", cobra.NoArgs, func(cmd *cobra.Command, t client.Tricks, _ []string) error {
		all := gen.TrickList{Tricks: []gen.Trick{}}
		params := gen.ListTricksParams{Limit: new(200)}
		if schedule != "" {
			params.Schedule = &schedule
		}
		if active {
			params.Active = &active
		}
		for {
			page, err := t.List(cmd.Context(), params)
			if err != nil {
				return err
			}
			all.Tricks = append(all.Tricks, page.Tricks...)
			if page.NextCursor == "" {
				break
			}
			params.Cursor = &page.NextCursor
		}
		var rows [][]string
		for _, k := range all.Tricks {
			code := "-"
			if k.Code != nil {
				code = strconv.Itoa(*k.Code)
			}
			rows = append(rows, []string{k.Name, k.ID, k.State, code, fmt.Sprintf("%d/%d", k.Attempt, k.Retries+1), a.since(k.StateSince)})
		}
		return a.PrintList(all, []string{"NAME", "ID", "STATE", "CODE", "ATTEMPT", "SINCE"}, rows)
	})
	cmd.Aliases = []string{"list"}
	cmd.Flags().StringVar(&schedule, "schedule", "", "only those of this `schedule`")
	cmd.Flags().BoolVar(&active, "active", false, "only those that still run")
	return cmd
}

func (a tricks) get() *cobra.Command {
	return a.call("get ID", "Show a trick", cobra.ExactArgs(1), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		k, err := t.Get(cmd.Context(), args[0], 0)
		return a.showTrick(k, err)
	})
}

func (a tricks) trickLogs() *cobra.Command {
	var attempt, tail int
	var follow bool
	cmd := a.call("logs ID", "Print what a trick wrote", cobra.ExactArgs(1), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		params := gen.TrickLogsParams{}
		if attempt > 0 {
			params.Attempt = &attempt
		}
		if tail > 0 {
			params.Tail = &tail
		}
		if follow {
			params.Follow = &follow
		}
		err := t.Logs(cmd.Context(), args[0], params, a.Out)
		if follow && errors.Is(err, context.Canceled) {
			return a.Exit(130, nil)
		}
		return err
	})
	cmd.Long = "logs prints what the job of a trick wrote: from its marquee while it runs, and from what\nis kept of it after its end."
	cmd.Flags().IntVar(&attempt, "attempt", 0, "that of this attempt (default: the last)")
	cmd.Flags().IntVar(&tail, "tail", 0, "only the last lines")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until ^C, while it runs")
	return cmd
}

func (a tricks) cancel() *cobra.Command {
	return a.call("cancel ID", "End a trick; its code is 130", cobra.ExactArgs(1), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		k, err := t.Cancel(cmd.Context(), args[0])
		return a.showTrick(k, err)
	})
}

func (a tricks) remove() *cobra.Command {
	cmd := a.call("rm ID", "Remove a trick, its logs and what is left of it", cobra.ExactArgs(1), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		k, err := t.Remove(cmd.Context(), args[0])
		return a.showTrick(k, err)
	})
	cmd.Aliases = []string{"delete"}
	return cmd
}

func (a tricks) addSchedule() *cobra.Command {
	j := &job{upping: upping{app: a.app}}
	var cron, zone, concurrency string
	var within time.Duration
	var keepDone, keepFailed int
	cmd := a.call("add NAME FILE|DIR", "Run a compose file by the clock", cobra.ExactArgs(2), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		if cron == "" {
			return a.Usage("say when: --cron, such as --cron '30 4 * * 1-5'")
		}
		up, err := j.request(args[1])
		if err != nil {
			return err
		}
		req := gen.AddTrickSchedule{
			Name: args[0], Marquee: up.Marquee, Compose: up.Compose, Files: up.Files, Variables: up.Variables, Policy: up.Policy, KeepVolumes: up.KeepVolumes,
			Retries: j.retries, BackoffSeconds: kit.WholeSeconds(j.backoff), DeadlineSeconds: wireSeconds(j.deadline), KeepSeconds: wireSeconds(j.keep),
			Cron: cron, TimeZone: zone, Concurrency: concurrency, KeepDone: &keepDone, KeepFailed: &keepFailed,
		}
		if within > 0 {
			req.StartWithinSeconds = kit.WholeSeconds(within)
		}
		s, err := t.AddSchedule(cmd.Context(), req)
		return a.showSchedule(s, err)
	})
	cmd.Long = "add keeps the compose file and what it uses, and runs it as a trick whenever the\n" +
		"expression says: minute, hour, day, month and weekday, such as '30 4 * * 1-5', or @daily."
	j.register(cmd)
	f := cmd.Flags()
	f.StringVar(&cron, "cron", "", "when, in cron's `expression`")
	f.StringVar(&zone, "time-zone", "", "`zone` that it is meant in, such as Europe/Berlin (default: UTC)")
	f.StringVar(&concurrency, "concurrency", "forbid", "while a run still goes on: `forbid` waits for it, replace cancels it, allow begins beside it")
	f.DurationVar(&within, "start-within", 0, "how late a run may begin (default: however late)")
	f.IntVar(&keepDone, "keep-done", 3, "finished tricks that are kept")
	f.IntVar(&keepFailed, "keep-failed", 1, "failed tricks that are kept")
	return cmd
}

func (a tricks) showSchedule(s gen.TrickSchedule, err error) error {
	if err != nil {
		return err
	}
	return a.show(s, s.ID, func() error {
		next := "paused"
		if !s.Paused {
			next = s.Next.Local().Format(time.RFC3339)
		}
		fired := ""
		if !s.Fired.IsZero() {
			fired = s.Fired.Local().Format(time.RFC3339) + ", trick " + s.Trick
		}
		waits := ""
		if !s.Waits.IsZero() {
			waits = "that of " + s.Waits.Local().Format(time.RFC3339)
		}
		return a.Sheet(a.Out, [][2]string{
			{"name", s.Name}, {"id", s.ID}, {"when", s.Cron + " " + or(s.TimeZone, "UTC")}, {"next", next}, {"last", fired}, {"waits", waits}, {"trouble", s.Trouble},
			{"running", strconv.Itoa(s.Active)}, {"concurrency", s.Concurrency}, {"may be late", limitText(s.StartWithinSeconds)}, {"marquee", a.marqueeName(s.Marquee)}, {"owner", s.Owner},
		})
	})
}

func (a tricks) listSchedules() *cobra.Command {
	cmd := a.call("ls", "List schedules", cobra.NoArgs, func(cmd *cobra.Command, t client.Tricks, _ []string) error {
		all, err := t.Schedules(cmd.Context())
		if err != nil {
			return err
		}
		var rows [][]string
		for _, s := range all.Schedules {
			next := "paused"
			if !s.Paused {
				next = s.Next.Local().Format(time.DateTime)
			}
			rows = append(rows, []string{s.Name, s.ID, s.Cron, or(s.TimeZone, "UTC"), next, strconv.Itoa(s.Active), or(s.Trouble, "-")})
		}
		return a.PrintList(all, []string{"NAME", "ID", "CRON", "ZONE", "NEXT", "RUNNING", "TROUBLE"}, rows)
	})
	cmd.Aliases = []string{"list"}
	return cmd
}

func (a tricks) getSchedule() *cobra.Command {
	return a.call("get SCHEDULE", "Show a schedule", cobra.ExactArgs(1), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		s, err := t.Schedule(cmd.Context(), args[0])
		return a.showSchedule(s, err)
	})
}

func (a tricks) actOnSchedule(action, short string) *cobra.Command {
	return a.call(action+" SCHEDULE", short, cobra.ExactArgs(1), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		answer, err := t.ActOnSchedule(cmd.Context(), args[0], action)
		return a.showSchedule(answer.Schedule, err)
	})
}

func (a tricks) fire() *cobra.Command {
	return a.call("run SCHEDULE", "Start a trick of a schedule now, beside its times", cobra.ExactArgs(1), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		answer, err := t.ActOnSchedule(cmd.Context(), args[0], "fire")
		return a.showTrick(answer.Trick, err)
	})
}

func (a tricks) removeSchedule() *cobra.Command {
	cmd := a.call("rm SCHEDULE", "Remove a schedule; its tricks stay", cobra.ExactArgs(1), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		return t.RemoveSchedule(cmd.Context(), args[0])
	})
	cmd.Aliases = []string{"delete"}
	return cmd
}

// extend is a verb of playgrounds.
func (a *app) extend() *cobra.Command {
	t := tricks{a}
	cmd := t.call("extend ID EXPIRES", "Give a playground more time", cobra.ExactArgs(2), func(cmd *cobra.Command, t client.Tricks, args []string) error {
		g, err := t.Extend(cmd.Context(), args[0], args[1])
		return a.showPlayground(g, err)
	})
	cmd.Long = "EXPIRES is how much more time, such as 24h or 3d, counted from its end or from now,\nwhichever is later; a time such as 2026-06-01T18:00:00Z; or never."
	return cmd
}

// expiry is a verb of marquees.
func (a marquees) expiry() *cobra.Command {
	cmd := a.verb("expiry MARQUEE LIFE", "Say when new playgrounds on a marquee end by themselves", cobra.ExactArgs(2),
		func(cmd *cobra.Command, p client.Playguard, args []string) error {
			if args[1] != model.Never {
				if _, err := model.ParseLife(args[1]); err != nil {
					return a.Usage("LIFE %q: want a duration such as 72h or 3d, or never", args[1])
				}
			}
			m, err := p.ChangeMarquee(cmd.Context(), args[0], "expiry", gen.MarqueeAction{DefaultExpiry: args[1]})
			return a.showMarquee(m, err)
		})
	cmd.Long = "LIFE is a duration such as 72h or 3d, or never. It counts for those that say nothing of\ntheir own; what is there keeps its end."
	return cmd
}
