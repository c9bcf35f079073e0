package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Rules about tricks.
const (
	RuleTrickRuns   Rule = "trick.runs"
	RuleTrickEnd    Rule = "trick.end"    // an attempt has ended
	RuleTrickStop   Rule = "trick.stop"   // its deadline passed, or a person cancelled it
	RuleTrickNext   Rule = "trick.next"   // what comes after an attempt
	RuleTrickRetry  Rule = "trick.retry"  // it is tried again
	RuleTrickDone   Rule = "trick.done"   // nothing more is to come of it
	RuleTrickClean  Rule = "trick.clean"  // what it left is taken away
	RuleTrickForget Rule = "trick.forget" // its record has been kept long enough
)

// Acts on the record of a trick.
type (
	// Close writes the end of its present attempt.
	Close struct{ Attempt model.Attempt }
	// End writes why the present attempt is being ended.
	End struct{ Why model.TrickEnd }
)

func (Close) act() {}
func (End) act()   {}

// GuardLogs has what an attempt wrote brought in before its containers go.
const GuardLogs Guard = "logs_owed"

// trickRules are the rules of a playground that is a job and is not being
// destroyed.
var trickRules = map[model.State][]rule{
	model.StatePending: {
		jobActive(),
		when(RuleTrickRuns, (*view).began, begun),
		when(RuleTrickEnd, (*view).hopeless, giveUpTrick),
		when(RuleTrickDone, (*view).closed, finish),
		when(RuleRequeue, always, requeue),
	},
	model.StateInProgress: {
		jobActive(),
		when(RuleTrickRuns, (*view).began, begun),
		when(RuleFresh, func(v *view) bool { return !v.stale() }, func(v *view) *outcome { return refuse(GuardYoung, v.run.String()) }),
		when(RuleRecover, always, recoverInterrupted),
	},
	model.StateRunning: {
		jobActive(),
		when(RuleTrickNext, (*view).closed, afterEnd),
		rule{RuleTrickEnd, ended},
		when(RuleTrickStop, (*view).overdue, stopTrick),
		when(RuleTrick, always, keepIt),
	},
	model.StateError: {
		jobActive(),
		when(RuleTrickRuns, (*view).began, begun),
		when(RuleTrickDone, (*view).closed, afterEnd),
		when(RuleTrickEnd, func(v *view) bool { return v.hopeless() || !v.p.Failure.Temporary() }, giveUpTrick),
		when(RuleStarting, func(v *view) bool { return v.is(Starting) }, wait),
		when(RuleRetry, always, retryTrick),
	},
	model.StateCompleted: {
		jobActive(),
		when(RuleTrickForget, func(v *view) bool { return v.kept() && v.empty() }, func(v *view) *outcome {
			return &outcome{act: Move{From: v.p.State, To: model.StateDestroying}, why: "its record was kept for " + v.p.Trick.Keep.String()}
		}),
		when(RuleTrickClean, func(v *view) bool { return v.containers > 0 || v.dir.Exists || !v.p.KeepVolumes && len(v.volumes) > 0 }, cleanUp),
		when(RuleLeave, always, keepIt),
	},
}

// watched are the containers of the present attempt that decide, by service.
func (v *view) watched() map[string]observe.Container {
	out := map[string]observe.Container{}
	for _, c := range v.list {
		if c.OneOff || !slices.Contains(v.p.Trick.Watch, c.Service) || slices.Contains(v.p.Trick.Spent, c.ID) {
			continue
		}
		if old, ok := out[c.Service]; !ok || !started(old) {
			out[c.Service] = c
		}
	}
	return out
}

// started reports whether a container has run. One that was only created has
// not.
func started(c observe.Container) bool {
	return c.State != "" && c.State != "created" && c.State != "removing"
}

// over reports whether a container has come to its end.
func over(c observe.Container) bool { return c.State == "exited" || c.State == "dead" }

// began reports whether the present attempt has begun: then it is never
// brought up again, or its program would run twice.
func (v *view) began() bool {
	if !v.p.Trick.Open() {
		return false
	}
	for _, c := range v.watched() {
		if started(c) {
			return true
		}
	}
	return false
}

func (v *view) closed() bool { return !v.p.Trick.Open() }

// overdue reports whether the present attempt is to be ended.
func (v *view) overdue() bool { return v.p.Trick.Ending != "" || v.p.Trick.Late(v.in.Now) }

// hopeless: it has not begun, and is not to begin any more.
func (v *view) hopeless() bool { return v.p.Trick.Open() && v.overdue() }

// kept reports whether the record of what is done has been kept long enough.
func (v *view) kept() bool {
	t := v.p.Trick
	return t.Keep > 0 && v.in.Now.Sub(t.Last().At) >= t.Keep
}

// begun writes that it runs.
func begun(v *view) *outcome {
	return &outcome{act: Move{From: v.p.State, To: model.StateRunning}, why: v.run.String()}
}

// ended writes the end of the present attempt, if a look shows it: a watched
// service failed, or all have ended. One failure is the result; of several the
// first by name.
func ended(v *view) *outcome {
	t, list := v.p.Trick, v.watched()
	a := model.Attempt{At: v.in.Now, End: t.Ending}
	running, blocked, interrupted := 0, 0, ""
	for _, name := range t.Watch {
		c, there := list[name]
		end := model.ServiceEnd{Name: name, Code: model.CodeStillRan}
		switch {
		case over(c):
			end.Code = c.Exit
			if event := byHost(v, c); event != "" {
				interrupted = event
				end.Code = cmp.Or(c.Exit, model.CodeInterrupted)
			}
			a.Code = cmp.Or(a.Code, end.Code)
		case there && started(c):
			running++
		default:
			blocked++
		}
		a.Services = append(a.Services, end)
	}
	switch {
	case running+blocked > 0 && a.Code == 0 && (running > 0 || v.runs()):
		return nil // goes on
	case blocked > 0 && a.Code == 0:
		return v.blocked(a, len(list) == 0)
	}
	a.Why = told(a)
	switch {
	case interrupted != "" && a.End == "":
		a.End, a.Why = model.TrickInterrupted, interrupted+" while it ran; "+a.Why
	case a.End == model.TrickDeadline:
		a.Code, a.Why = model.CodeDeadline, fmt.Sprintf("it ran longer than its deadline of %s", t.Deadline)
	case a.End == model.TrickCancelled:
		a.Code, a.Why = model.CodeCancelled, "a person cancelled it"
	}
	return &outcome{act: Close{a}, why: a.Why}
}

// blocked ends an attempt of which nothing runs and something never did, or
// whose containers are gone.
func (v *view) blocked(a model.Attempt, gone bool) *outcome {
	if o := first(v, confirmed(RuleTrickEnd)); o != nil {
		return counted(RuleTrickEnd, o)
	}
	a.Code, a.Why = model.CodeNotStarted, "what it waits for has ended, and it was never started"
	switch {
	case a.End == model.TrickDeadline:
		a.Code = model.CodeDeadline
	case a.End == model.TrickCancelled:
		a.Code = model.CodeCancelled
	case gone:
		a.End, a.Why = model.TrickRemoved, "its containers were removed on the host"
	default:
		a.End = model.TrickNotStarted
	}
	return &outcome{act: Close{a}, why: a.Why}
}

// byHost says which event of the host ended a container, and not its program:
// it ran when the event came, and ended with it or shortly before. A program
// that ends with 0 when it is told to has not done its work.
func byHost(v *view, c observe.Container) string {
	for _, e := range []struct {
		what string
		at   time.Time
	}{{"the host booted", v.host.BootedAt()}, {"the daemon started", v.host.Boot.DaemonStart}} {
		if e.at.IsZero() || c.Started.IsZero() || !c.Started.Before(e.at) {
			continue
		}
		if c.Finished.After(e.at.Add(-shutdownTime)) && !c.Finished.After(e.at.Add(v.in.Policy.EventSlack)) {
			return e.what
		}
	}
	return ""
}

// shutdownTime is how long before a host's or daemon's start its shutdown may
// have told programs to end.
const shutdownTime = 5 * time.Minute

func told(a model.Attempt) string {
	var words []string
	for _, s := range a.Services {
		if s.Code == model.CodeStillRan {
			words = append(words, s.Name+" still ran")
			continue
		}
		words = append(words, fmt.Sprintf("%s exited with code %d", s.Name, s.Code))
	}
	return strings.Join(words, ", ")
}

// stopTrick ends what runs too long, or was cancelled: why is written first.
func stopTrick(v *view) *outcome {
	if v.p.Trick.Ending == "" {
		return &outcome{act: End{model.TrickDeadline}, why: "its deadline of " + v.p.Trick.Deadline.String() + " has passed"}
	}
	if !v.runs() {
		return keep(v.run.String())
	}
	return &outcome{act: Remote{Op: Stop{}}, why: string(v.p.Trick.Ending)}
}

// giveUpTrick ends an attempt that never began.
func giveUpTrick(v *view) *outcome {
	t := v.p.Trick
	a := model.Attempt{At: v.in.Now, Code: model.CodeNotStarted, End: model.TrickNotStarted, Why: cmp.Or(v.p.Failure.Text, "it was never started")}
	switch {
	case t.Ending == model.TrickCancelled:
		a.Code, a.End, a.Why = model.CodeCancelled, model.TrickCancelled, "a person cancelled it before it began"
	case t.Late(v.in.Now):
		a.Code, a.End, a.Why = model.CodeDeadline, model.TrickDeadline, fmt.Sprintf("it did not begin within its deadline of %s", t.Deadline)
	}
	return &outcome{act: Close{a}, why: a.Why}
}

// afterEnd goes on after an attempt: what it wrote is brought in before its
// containers go, then it is tried again or is done.
func afterEnd(v *view) *outcome {
	t := v.p.Trick
	if t.Last().Logs == model.LogsOwed && v.containers > 0 {
		return refuse(GuardLogs, fmt.Sprintf("attempt %d ended with code %d", t.Last().N, t.Last().Code))
	}
	at, again := t.Again(v.in.Now)
	switch {
	case !again:
		return finish(v)
	case v.in.Now.Before(at):
		return refuse(GuardBackoff, "it is tried again "+ends(at.Sub(v.in.Now)))
	}
	if o := first(v, inBudget); o != nil {
		return o
	}
	var spent []string
	for _, c := range v.list {
		spent = append(spent, c.ID)
	}
	slices.Sort(spent)
	return &outcome{
		act: Move{From: v.p.State, To: model.StatePending, Owed: model.ActionRetryCompose, Start: true, Cost: CostRecover, Spent: spent},
		why: fmt.Sprintf("attempt %d of %d; the last one: %s", t.Attempt+1, t.Retries+1, t.Last().Why),
	}
}

// finish writes that nothing more is to come of it.
func finish(v *view) *outcome {
	last := v.p.Trick.Last()
	return &outcome{act: Move{From: v.p.State, To: model.StateCompleted}, why: fmt.Sprintf("code %d: %s", last.Code, last.Why)}
}

// retryTrick queues an attempt again that never began, after a failure that may
// be over: that is no further attempt.
func retryTrick(v *view) *outcome {
	if o := first(v, backoff(func(v *view) time.Time { return v.p.StateSince }), inBudget); o != nil {
		return o
	}
	return &outcome{
		act: Move{From: v.p.State, To: model.StatePending, Start: true, Cost: CostRecover},
		why: string(v.p.Failure.Category) + " may be over",
	}
}

// cleanUp takes away what a trick left. Work in its checkouts stays where it
// is.
func cleanUp(v *view) *outcome {
	if held := clean(v); held != nil {
		if v.containers > 0 {
			return &outcome{act: Remote{Op: Down{}}, why: "its files stay: " + held.why}
		}
		held.flag = model.AttentionExpired
		return held
	}
	return v.reclaim("it is done")
}

// applyTrick carries out what only tricks have. A move with containers of the
// last attempt begins a further one: nobody takes their ends for its own.
func applyTrick(p model.Playground, act Act) model.Playground {
	t := *p.Trick
	switch a := act.(type) {
	case Close:
		t, p.Strikes = t.Closed(a.Attempt), model.Strikes{}
	case End:
		t.Ending = a.Why
	case Move:
		t, p.Failure = t.Next(a.Spent), model.Failure{}
	}
	p.Trick = &t
	return p
}
