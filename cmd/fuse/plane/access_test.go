package plane

import (
	"cmp"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	apikeys "github.com/fusevm/fuse/internal/keys"
	"github.com/fusevm/fuse/internal/playguard/credential"
	"github.com/fusevm/fuse/internal/playguard/githook"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/template"
	"github.com/fusevm/fuse/internal/state"
)

// makes are the routes by which somebody makes what is his own.
var makes = []string{
	"/v1/environments", "/v1/playgrounds", "/v1/playground-plans", "/v1/tricks", "/v1/trick-schedules", "/v1/notification-routes", "/v1/schedule/explain",
	"/v1/playground-branches", "/v1/playground-secrets", "/v1/git-hooks", "/v1/playground-templates", "/v1/playground-previews",
}

// foreign is what somebody else has, by the routes that name such a thing.
var foreign = map[string]string{
	"/v1/playground-secrets/{id}": "secretothers", "/v1/git-hooks/{id}": "hookothers",
	"/v1/playground-templates/{id}": "others-template", "/v1/playground-previews/{id}": "others-preview",
}

// TestAKeySeesNothingOfOthers calls every route of a whole server, of all
// areas, with keys that have an owner, about an environment of somebody else:
// what the role does not allow is refused, what names the environment answers
// as for one that never was, and no list or stream has it.
func TestAKeySeesNothingOfOthers(t *testing.T) {
	p := testPlane(t)
	id, life := "fuse-others", "01OTHERSOTHERSOTHERSOTHERS"
	commit, err := p.Store.Update(t.Context(), func(tx *state.Tx) error {
		vm := fleet.VM{ID: id, UID: life, Generation: 1, Owner: "y", TaskID: "others", State: fleet.VMStateProvisioning}
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: id, UID: life, Type: fleet.EventVMProvisioning, State: fleet.VMStateProvisioning})
		return tx.PutVM(vm)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.Update(t.Context(), func(tx *state.Tx) error {
		project, err := model.NewProject("others", "pgothers")
		if err != nil {
			return err
		}
		return errors.Join(
			credential.Secrets.Put(tx, "secretothers", &credential.Secret{ID: "secretothers", Owner: "others", Name: "others-secret", Kind: credential.KindToken}),
			githook.Hooks.Put(tx, "hookothers", &githook.Hook{ID: "hookothers", Owner: "others", Repository: "https://git.example.org/others.git"}),
			template.Templates.Put(tx, "templateothers", &template.Template{ID: "templateothers", Owner: "others", Name: "others-template"}),
			template.Previews.Put(tx, "previewothers", &template.Preview{ID: "previewothers", Owner: "others", Name: "others-preview"}),
			tx.PutSnapshot(fleet.Snapshot{
				SnapshotID: "snapothers", VMID: "fuse-z", UID: "z", Owner: "others", State: fleet.SnapshotStateReady, LayerKey: "k", Arch: "amd64",
			}),
			records.PutMarquee(tx, records.Marquee{Name: "box", Marquee: model.Marquee{ID: "mq1", Root: model.DefaultRoot, Admin: model.AdminDisabled}}),
			records.PutPlayground(tx, records.Playground{Name: "others", Owner: "others", Playground: model.Playground{ID: "pgothers", Marquee: "mq1", Project: project, State: model.StateRunning}}))
	}); err != nil {
		t.Fatal(err)
	}
	call := func(method, target, key string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1"+target, strings.NewReader("{}"))
		r.RemoteAddr = "127.0.0.1:1"
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("X-Request-ID", "same")
		rec := httptest.NewRecorder()
		p.api.ServeHTTP(rec, r)
		return rec
	}
	for _, role := range []fleet.Role{fleet.RoleUser, fleet.RoleRead} {
		_, key, err := p.keys.Create(t.Context(), apikeys.CreateRequest{Role: role, Owner: "x", Actor: fleet.ActorMaster})
		if err != nil {
			t.Fatal(err)
		}
		for _, rt := range p.api.Routes() {
			rule, known := auth.RuleOf(rt.Method, rt.Pattern)
			named := map[auth.Object]string{auth.Playground: "pgothers", auth.Snapshot: "snapothers"}[rule.Object]
			if strings.HasPrefix(rt.Pattern, "/v1/marquees/") { // everybody sees what marquees there are
				named = "mq1"
			}
			named = cmp.Or(named, id)
			target := strings.Replace(rt.Pattern, "{id}", named, 1)
			if rt.Pattern == "/v1/snapshots/resolve" {
				target += "?layer_key=k&arch=amd64"
			}
			switch allowed := (auth.Principal{Role: role}).Can(rule.Verb); {
			case !known && rt.Access == 0:
				t.Errorf("%s %s has no rule", rt.Method, rt.Pattern)
			case !known || (rt.Method == http.MethodPost || rt.Method == http.MethodPut) && slices.Contains(makes, rt.Pattern):
			case !allowed:
				if rec := call(rt.Method, target, key); rec.Code != http.StatusForbidden && rt.Pattern != "/metrics" {
					t.Errorf("%s %s, role %s: answered %d", rt.Method, rt.Pattern, role, rec.Code)
				}
			case rt.Pattern == "/v1/quotas/{id}": // named by owner or key, whose own form the path has
				got, unknown := call(rt.Method, "/v1/quotas/owner:others", key), call(rt.Method, "/v1/quotas/owner:nobody", key)
				if want := strings.ReplaceAll(unknown.Body.String(), "nobody", "others"); got.Code != http.StatusNotFound || got.Body.String() != want {
					t.Errorf("%s %s, role %s: %d %s, want %s", rt.Method, rt.Pattern, role, got.Code, got.Body, want)
				}
			case rule.Object != auth.NoObject:
				got, unknown := call(rt.Method, target, key), call(rt.Method, strings.Replace(rt.Pattern, "{id}", "fuse-nobody", 1), key)
				if want := strings.ReplaceAll(unknown.Body.String(), "fuse-nobody", named); got.Code != http.StatusNotFound || got.Body.String() != want {
					t.Errorf("%s %s, role %s: %d %s, want %s", rt.Method, rt.Pattern, role, got.Code, got.Body, want)
				}
			case foreign[rt.Pattern] != "": // the service of these tells whose they are
				got, unknown := call(rt.Method, strings.Replace(rt.Pattern, "{id}", foreign[rt.Pattern], 1), key), call(rt.Method, strings.Replace(rt.Pattern, "{id}", "nobodys", 1), key)
				if want := strings.ReplaceAll(unknown.Body.String(), "nobodys", foreign[rt.Pattern]); got.Code != http.StatusNotFound || got.Body.String() != want {
					t.Errorf("%s %s, role %s: %d %s, want %s", rt.Method, rt.Pattern, role, got.Code, got.Body, want)
				}
			case rule.Lists:
				if rec := call(rt.Method, target, key); rec.Code != http.StatusOK || strings.Contains(rec.Body.String(), "others") || strings.Contains(rec.Body.String(), life) {
					t.Errorf("%s %s, role %s: %d %s", rt.Method, rt.Pattern, role, rec.Code, rec.Body)
				}
			default:
				t.Errorf("%s %s is open to role %s and is neither a list nor about one object", rt.Method, rt.Pattern, role)
			}
		}
	}
	if err := p.Store.View(func(tx *state.ReadTx) error {
		if vm, ok := tx.VMs().Get(id); !ok || vm.Revision != commit.Revision {
			t.Errorf("it was changed: %+v", vm)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
