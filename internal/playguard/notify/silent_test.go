package notify

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
)

// A route tells nothing while nobody can act for its owner, or only with a role
// that may not know it; what happened meanwhile is not told later.
func TestRoutesOfWhoIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		roles := map[string]fleet.Role{"ann": fleet.RoleRead, "olga": fleet.RoleOperator}
		w.acts = func(owner string, least fleet.Role) bool {
			mu.Lock()
			defer mu.Unlock()
			have, ok := roles[owner]
			return ok && slices.Index(fleet.KeyRoles, have) <= slices.Index(fleet.KeyRoles, least)
		}
		var told []string
		w.svc.try = func(_ context.Context, r Route, m Message) error {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, r.Name+" "+m.Type)
			return nil
		}
		for name, scope := range map[string]Scope{"ann": ScopePlayer, "olga": ScopeInstallation} {
			role := roles[name]
			ctx := auth.With(context.Background(), auth.Principal{Name: name, Role: role})
			if _, err := w.svc.Add(ctx, NewRoute{Name: name, Scope: scope, Channel: ChannelEmail, To: []string{name + "@example.org"}, Most: 100}); err != nil {
				t.Fatal(err)
			}
		}
		defer w.run()()
		after := func(change func(), typ string) string {
			mu.Lock()
			change()
			told = nil
			mu.Unlock()
			w.happens(typ, "x")
			<-time.After(time.Second)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(told)
			return strings.Join(told, ", ")
		}
		for _, c := range []struct {
			change    func()
			typ, want string
		}{
			{func() {}, fleet.EventPlaygroundParked, "ann playground.parked, olga playground.parked"},
			{func() { delete(roles, "ann") }, fleet.EventPlaygroundFlagged, "olga playground.flagged"},
			{func() { roles["olga"] = fleet.RoleUser }, fleet.EventPlaygroundParked, ""},
			{func() { roles["ann"] = fleet.RoleUser }, fleet.EventPlaygroundFlagged, "ann playground.flagged"},
		} {
			if got := after(c.change, c.typ); got != c.want {
				t.Errorf("told %q, want %q", got, c.want)
			}
		}
		for name, silent := range map[string]bool{"ann": false, "olga": true} {
			if r, err := w.svc.Get(context.Background(), name); err != nil || strings.Contains(r.Error, "no API key") != silent {
				t.Errorf("%s: %q %v", name, r.Error, err)
			}
		}
	})
}
