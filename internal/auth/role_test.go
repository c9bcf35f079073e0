package auth

import (
	"net/http"
	"path"
	"slices"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
)

// The matrix as it is documented: M master, A admin, O operator, U user, R read.
func TestMatrix(t *testing.T) {
	want := map[Verb]string{
		ReadEnvironments: "MAOUR", WriteEnvironments: "MAOU",
		ReadSnapshots: "MAOUR", WriteSnapshots: "MAOU",
		ReadPlaygrounds: "MAOUR", WritePlaygrounds: "MAOU",
		ReadEvents: "MAOUR",
		ReadHosts:  "MAO", WriteHosts: "MAO",
		ReadReconcile: "MAO", WriteReconcile: "MAO",
		ReadWebhooks: "MAO", WriteWebhooks: "MAO",
		ReadMetrics: "MAO", ReadServer: "MAO",
		ReadQuotas: "MAOUR", WriteQuotas: "MAO",
		WriteServer: "MA", ReadKeys: "MA", WriteKeys: "MA",
	}
	if len(want) != len(matrix) {
		t.Errorf("%d verbs in the table, %d here", len(matrix), len(want))
	}
	letters := map[fleet.Role]string{
		fleet.RoleMaster: "M", fleet.RoleAdmin: "A", fleet.RoleOperator: "O", fleet.RoleUser: "U", fleet.RoleRead: "R", "": "?", "root": "!",
	}
	for verb, roles := range want {
		got := ""
		for _, role := range []fleet.Role{fleet.RoleMaster, fleet.RoleAdmin, fleet.RoleOperator, fleet.RoleUser, fleet.RoleRead, "", "root"} {
			if (Principal{Role: role}).Can(verb) {
				got += letters[role]
			}
		}
		if got != roles {
			t.Errorf("%s: %s may, want %s", verb, got, roles)
		}
	}
}

func TestSees(t *testing.T) {
	for _, c := range []struct {
		role  fleet.Role
		owner string
		want  bool
	}{
		{fleet.RoleUser, "x", true}, {fleet.RoleUser, "y", false}, {fleet.RoleUser, "", false}, {fleet.RoleUser, "master", false},
		{fleet.RoleRead, "x", true}, {fleet.RoleRead, "y", false},
		{fleet.RoleOperator, "y", true}, {fleet.RoleAdmin, "y", true}, {fleet.RoleMaster, "y", true}, {fleet.RoleOperator, "", true},
		{"", "y", false}, {"", "", false},
	} {
		if got := (Principal{Name: "x", Role: c.role}).Sees(c.owner); got != c.want {
			t.Errorf("%s sees %q: %v", c.role, c.owner, got)
		}
	}
	if (Principal{}).Sees("") {
		t.Error("nobody sees what nobody owns")
	}
}

// Reading verbs go with reading methods, so that a key of role read can change
// nothing, and what has an owner names it.
func TestRulesAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules {
		name := r.Method + " " + r.Pattern
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		if _, ok := matrix[r.Verb]; !ok {
			t.Errorf("%s: no such verb %q", name, r.Verb)
		}
		// A terminal is asked for with GET, and what files hold, secrets among
		// them, is for those who may use the environment.
		uses := slices.Contains([]string{"attach", "forward", "exec", "files", "archive"}, path.Base(r.Pattern)) && r.Method == http.MethodGet && verbHalf(r.Verb) == "write"
		if reads := slices.Contains([]string{"read"}, verbHalf(r.Verb)); reads != (r.Method == http.MethodGet) && !uses {
			t.Errorf("%s is a %s", name, r.Verb)
		}
		forUsers := (Principal{Role: fleet.RoleUser}).Can(r.Verb)
		if one := r.Object != NoObject; forUsers && !one && !r.Lists && r.Method == http.MethodGet {
			t.Errorf("%s is open to users and neither names an object nor lists", name)
		}
	}
	if r, ok := RuleOf(http.MethodHead, "/v1/environments"); !ok || r.Verb != ReadEnvironments {
		t.Errorf("HEAD has rule %+v", r)
	}
	r, ok := RuleOf(http.MethodGet, "/v1/nothing")
	if ok {
		t.Error("a rule for nothing")
	}
	for _, role := range fleet.KeyRoles {
		if may := (Principal{Role: role}).Can(r.Verb); may != (role == fleet.RoleAdmin) {
			t.Errorf("a route without rule, role %s: %v", role, may)
		}
	}
}

func verbHalf(v Verb) string {
	for i := range v {
		if v[i] == '.' {
			return string(v[i+1:])
		}
	}
	return ""
}

func TestActors(t *testing.T) {
	for want, p := range map[string]Principal{
		"user:master":       Master,
		"user:ak_1":         {Name: "ak_1", KeyID: "ak_1"},
		"user:ci/ak_1":      {Name: "team", KeyID: "ak_1", Label: "ci"},
		"user:master/ak_66": {Name: "x", KeyID: "ak_66", Label: "master"},
	} {
		if got := p.Actor(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
