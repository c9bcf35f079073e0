package history_test

import (
	"testing"
	"time"

	"github.com/fusevm/fuse/test/history"
)

// h writes histories short: each op takes the next two stamps unless told
// otherwise.
func h(ops ...history.Op) []history.Op {
	for i := range ops {
		ops[i].ID = "fuse-a"
		if ops[i].Call == 0 {
			ops[i].Call, ops[i].Return = int64(10*i+1), int64(10*i+5)
		}
		if ops[i].Outcome == history.Lost || ops[i].Return == 0 {
			ops[i].Return = history.Never
		}
	}
	return ops
}

func op(verb history.Verb, out history.Outcome, uid, state string) history.Op {
	return history.Op{Verb: verb, Outcome: out, UID: uid, State: state}
}

func TestCheck(t *testing.T) {
	const (
		done, lost, notFound = history.Done, history.Lost, history.NotFound
		create, destroy      = history.Create, history.Destroy
		look, drain          = history.Look, history.Drain
	)
	for name, c := range map[string]struct {
		ops []history.Op
		ok  bool
	}{
		"a life": {h(op(create, done, "U", ""), op(look, done, "U", "running"), op(drain, done, "U", ""), op(look, done, "U", "draining"),
			op(destroy, done, "", ""), op(look, notFound, "", ""), op(create, done, "V", ""), op(look, done, "V", "running")), true},
		"an acknowledged create is gone":  {h(op(create, done, "U", ""), op(look, notFound, "", "")), false},
		"a destroyed life is back":        {h(op(create, done, "U", ""), op(destroy, done, "", ""), op(look, done, "U", "running")), false},
		"two lives at once":               {h(op(create, done, "U", ""), op(create, done, "V", "")), false},
		"an old drain is forgotten":       {h(op(create, done, "U", ""), op(drain, done, "U", ""), op(look, done, "U", "running")), false},
		"a stale look":                    {h(op(create, done, "U", ""), op(destroy, done, "", ""), op(create, done, "V", ""), op(look, done, "U", "running")), false},
		"a lost create shows":             {h(op(create, lost, "", ""), op(look, notFound, "", ""), op(look, done, "U", "running"), op(look, done, "U", "running")), true},
		"a lost create shows and ends":    {h(op(create, lost, "", ""), op(look, done, "U", "running"), op(look, notFound, "", "")), false},
		"a lost create is undone":         {h(op(create, lost, "", ""), op(look, done, "U", "provisioning"), op(look, notFound, "", "")), true},
		"a lost create changes its life":  {h(op(create, lost, "", ""), op(look, done, "U", "running"), op(look, done, "V", "running")), false},
		"a lost destroy works":            {h(op(create, done, "U", ""), op(destroy, lost, "", ""), op(look, done, "U", "running"), op(look, notFound, "", "")), true},
		"a lost destroy works only once":  {h(op(create, done, "U", ""), op(destroy, lost, "", ""), op(look, notFound, "", ""), op(create, done, "V", ""), op(look, notFound, "", "")), false},
		"an end that was seen is no end":  {h(op(create, done, "U", ""), op(destroy, lost, "", ""), op(look, done, "U", "destroying"), op(look, done, "U", "running")), false},
		"a failed destroy comes late":     {h(op(create, done, "U", ""), op(destroy, history.Failed, "", ""), op(look, done, "U", "running"), op(look, notFound, "", "")), true},
		"a pending create may fail":       {h(op(create, history.Pending, "U", ""), op(look, done, "U", "provisioning"), op(look, notFound, "", "")), true},
		"a pending create has begun":      {h(op(create, history.Pending, "U", ""), op(look, done, "V", "running")), false},
		"a pending create that was seen":  {h(op(create, history.Pending, "U", ""), op(look, done, "U", "running"), op(look, notFound, "", "")), false},
		"a pending destroy is certain":    {h(op(create, done, "U", ""), op(destroy, history.Pending, "", ""), op(look, done, "U", "running")), false},
		"a machine that died may go":      {h(op(create, done, "U", ""), op(history.Died, done, "U", ""), op(look, notFound, "", "")), true},
		"another machine that died":       {h(op(create, done, "U", ""), op(history.Died, done, "V", ""), op(look, notFound, "", "")), false},
		"a drain that failed drains":      {h(op(create, done, "U", ""), op(drain, history.Refused, "", ""), op(look, done, "U", "draining")), true},
		"a refused create changes nought": {h(op(create, done, "U", ""), op(create, history.Refused, "", ""), op(look, done, "U", "running")), true},
	} {
		t.Run(name, func(t *testing.T) {
			undecided, problem := history.Check(c.ops, time.Minute)
			if undecided || (problem == "") != c.ok {
				t.Errorf("undecided %v, problem %q", undecided, problem)
			}
		})
	}
}
