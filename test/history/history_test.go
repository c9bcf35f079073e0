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

func TestCheckSnapshots(t *testing.T) {
	const (
		done, lost, failed, notFound = history.Done, history.Lost, history.Failed, history.NotFound
		take, restore, remove, look  = history.Take, history.Restore, history.Remove, history.Look
	)
	told := op(take, done, "", "")
	for name, c := range map[string]struct {
		ops []history.Op
		ok  bool
	}{
		"a life": {h(told, op(look, done, "", "ready"), op(restore, done, "", ""), op(look, done, "", "ready"), op(remove, done, "", ""),
			op(look, notFound, "", ""), op(remove, notFound, "", "")), true},
		"one that was told of is gone":      {h(told, op(look, notFound, "", "")), false},
		"one that was told of breaks":       {h(told, op(look, done, "", "error")), false},
		"one that was told of is made anew": {h(told, op(look, done, "", "creating")), false},
		"one that was removed is back":      {h(told, op(remove, done, "", ""), op(look, done, "", "ready")), false},
		"nobody restores":                   {h(told, op(look, done, "", "restoring")), false},
		"nobody deletes":                    {h(told, op(look, done, "", "deleting")), false},
		"a refused deletion changes nought": {h(told, op(remove, history.Refused, "", ""), op(look, done, "", "deleting")), false},
		"a lost restore is seen later":      {h(told, op(restore, lost, "", ""), op(look, done, "", "ready"), op(look, done, "", "restoring"), op(look, done, "", "ready")), true},
		"a failed restore deletes nothing":  {h(told, op(restore, failed, "", ""), op(look, notFound, "", "")), false},
		"a failed deletion goes on":         {h(told, op(remove, failed, "", ""), op(look, done, "", "error"), op(look, done, "", "deleting"), op(look, notFound, "", "")), true},
		"a deletion is not taken back":      {h(told, op(remove, failed, "", ""), op(look, done, "", "error"), op(look, done, "", "ready")), false},
		"one that nobody was told of fails": {h(op(look, done, "", "creating"), op(look, done, "", "error"), op(look, notFound, "", "")), true},
		"one that nobody was told of works": {h(op(look, notFound, "", ""), op(look, done, "", "ready"), op(look, done, "", "ready")), true},
		"one that nobody was told of stays": {h(op(look, done, "", "ready"), op(look, notFound, "", "")), false},
		"an end that was seen is no end":    {h(op(look, done, "", "error"), op(look, notFound, "", ""), op(look, done, "", "creating")), false},
		"what is denied is not there":       {h(told, op(remove, notFound, "", "")), false},
	} {
		t.Run(name, func(t *testing.T) {
			undecided, problem := history.CheckSnapshots(c.ops, time.Minute)
			if undecided || (problem == "") != c.ok {
				t.Errorf("undecided %v, problem %q", undecided, problem)
			}
		})
	}
}
