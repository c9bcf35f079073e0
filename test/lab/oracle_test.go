package lab

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/history"
)

// line is one line of a host's own log about a VM or a term.
type line struct {
	at        time.Time
	what      string
	uid, vmID string
	term      int64
}

var logLine = regexp.MustCompile(`^time=(\S+) level=\S+ msg="?(vm running|vm destroyed|destroy ordered|term claimed)"?(.*)$`)

func field(rest, name string) string {
	_, after, _ := strings.Cut(rest, " "+name+"=")
	value, _, _ := strings.Cut(after, " ")
	return value
}

// hostLog reads what a host has logged so far.
func (l *lab) hostLog(n int) (lines []line) {
	for text := range strings.Lines(l.hosts[n].Output()) {
		if !strings.HasSuffix(text, "\n") {
			break // the rest is on its way
		}
		m := logLine.FindStringSubmatch(strings.TrimSpace(text))
		if m == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			l.t.Fatalf("a host's log: %v", err)
		}
		term, _ := strconv.ParseInt(field(m[3], "term"), 10, 64)
		lines = append(lines, line{at, m[2], field(m[3], "uid"), field(m[3], "vm_id"), term})
	}
	return lines
}

// settled waits until nothing is on its way any more, and lists what is there,
// by uid.
func (l *lab) settled() map[string]environment {
	l.t.Helper()
	found := map[string]environment{}
	testkit.Eventually(l.t, 3*time.Minute, "every environment runs, drains or is gone, as its host says", func() bool {
		a, err := l.server(0).Do(http.MethodGet, "/v1/environments?limit=200", "")
		if err != nil || a.Status != http.StatusOK {
			return false
		}
		var page struct {
			Environments []environment `json:"environments"`
		}
		a.JSON(l.t, &page)
		clear(found)
		for _, env := range page.Environments {
			if env.State != "running" && env.State != "draining" {
				return false
			}
			found[env.UID] = env
		}
		held := l.holds()
		for uid := range found {
			if !held[uid] {
				return false
			}
		}
		return len(held) == len(found)
	})
	return found
}

// holds is what hosts have, by their logs: what ran and was not destroyed.
func (l *lab) holds() map[string]bool {
	held := map[string]bool{}
	for n := range l.hosts {
		for _, e := range l.hostLog(n) {
			switch e.what {
			case "vm running":
				held[e.uid] = true
			case "vm destroyed":
				delete(held, e.uid)
			}
		}
	}
	return held
}

// slack is how far apart the lines of two things may be that were in the other
// order: they are written after the fact, by a host that may be busy. A leader is
// stopped for longer than that past its lease.
const slack = 1500 * time.Millisecond

// judge holds the clients' history against the hosts' logs and what is there in
// the end.
func (l *lab) judge() {
	l.t.Helper()
	there, held, ops := l.settled(), l.holds(), l.log.Ops()
	for uid := range there {
		if !held[uid] {
			l.t.Errorf("%s is listed and no host has it", uid)
		}
	}
	shown := map[string]history.Op{}
	ends := map[string][]history.Op{} // what may have ended an environment
	for _, op := range ops {
		switch {
		case op.Verb == history.Destroy && op.Outcome != history.NotFound && op.Outcome != history.Refused:
			ends[op.ID] = append(ends[op.ID], op)
		case op.Outcome == history.Done && op.UID != "" && (op.State == "running" || op.State == "draining"):
			if _, ok := shown[op.UID]; !ok {
				shown[op.UID] = op
			}
		}
	}
	explained := func(op history.Op) bool {
		for _, end := range ends[op.ID] {
			if end.Return > op.Call {
				return true
			}
		}
		return false
	}
	for uid, op := range shown {
		if _, ok := there[uid]; !ok && !explained(op) {
			l.t.Errorf("%s was acknowledged and is gone, though nobody asked for that:\n%s", uid, history.Of(ops, op.ID))
		}
	}
	for n := range l.hosts {
		l.judgeHost(n, shown, explained)
	}
	if undecided, problem := history.Check(ops, 30*time.Second); problem != "" {
		l.t.Error(problem)
	} else if undecided {
		l.t.Log("the search for an order was given up")
	}
	l.t.Logf("%d operations, %d lives seen, %d there in the end", len(ops), len(shown), len(there))
}

// judgeHost holds one host's log against the promises: nothing that a client
// knew of was destroyed unasked, and nobody obeyed a leader of the past.
func (l *lab) judgeHost(n int, shown map[string]history.Op, explained func(history.Op) bool) {
	var term int64
	var since time.Time
	for _, e := range l.hostLog(n) {
		switch e.what {
		case "term claimed":
			if e.term < term {
				l.t.Errorf("host %d took term %d after %d", n, e.term, term)
			}
			if e.term > term {
				term, since = e.term, e.at
			}
		case "destroy ordered":
			if e.term < term && e.at.Sub(since) > slack {
				l.t.Errorf("host %d obeyed term %d %v after it took %d: %s", n, e.term, e.at.Sub(since), term, e.vmID)
			}
		case "vm destroyed":
			if op, ok := shown[e.uid]; ok && !explained(op) {
				l.t.Errorf("host %d destroyed %s (%s), and nobody had asked for it", n, e.uid, e.vmID)
			}
		}
	}
}
