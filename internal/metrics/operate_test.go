package metrics

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/fusevm/fuse/internal/fleet"
)

const operate = "../../docs/operate/"

// promtool runs Prometheus's own tool; tools/deps test installs it.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(operate + name)
	if err == nil {
		err = yaml.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAlertRules(t *testing.T) {
	promtool(t, "check", "rules", operate+"alerts.yaml")
	promtool(t, "test", "rules", operate+"alerts_test.yaml")
}

// Every alert has a case in which it fires and one in which it does not, a
// severity, a line in the list and a runbook that says what to do; and no
// runbook is without its alert.
func TestAlertsHaveCasesAndRunbooks(t *testing.T) {
	var file ruleFile
	readYAML(t, "alerts.yaml", &file)
	var cases struct {
		Tests []struct {
			Name string `yaml:"name"`
		} `yaml:"tests"`
	}
	readYAML(t, "alerts_test.yaml", &cases)
	tested := map[string]bool{}
	for _, c := range cases.Tests {
		tested[c.Name] = true
	}
	list, err := os.ReadFile(operate + "alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			names = append(names, r.Alert)
			if !tested[r.Alert+" fires"] || !tested[r.Alert+" is quiet"] {
				t.Errorf("%s: alerts_test.yaml lacks a case that fires or one that does not", r.Alert)
			}
			if s := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			page := "runbooks/" + r.Alert + ".md"
			raw, err := os.ReadFile(operate + page)
			if err != nil || r.Annotations["runbook"] != "docs/operate/"+page || !strings.Contains(string(list), "("+page+")") {
				t.Errorf("%s: runbook %q, %v, or no line in alerts.md", r.Alert, r.Annotations["runbook"], err)
			}
			for _, part := range []string{"# " + r.Alert + "\n", "\n## What it means\n", "\n## Look\n", "\n## Do\n"} {
				if !strings.Contains(string(raw), part) {
					t.Errorf("%s: its runbook has no %q", r.Alert, strings.TrimSpace(part))
				}
			}
		}
	}
	pages, err := filepath.Glob(operate + "runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if name := strings.TrimSuffix(filepath.Base(page), ".md"); name != "README" && !slices.Contains(names, name) {
			t.Errorf("runbook %s has no alert", name)
		}
	}
}

var seriesName = regexp.MustCompile(`\b(?:orchestrator|fuse)_[a-z_]+`)

// exported lists the names that a query may use: ours, and those of the host
// agents as the page has them.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for name := range New("test").series {
		names[namespace+"_"+name] = true
	}
	for _, m := range regexp.MustCompile("`(fuse_hostd_[a-z_]+)`").FindAllStringSubmatch(reference(t), -1) {
		names[m[1]] = true
	}
	for name := range maps.Clone(names) {
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			names[name+part] = true
		}
	}
	return names
}

func TestQueriesUseWhatIsExported(t *testing.T) {
	var file ruleFile
	readYAML(t, "alerts.yaml", &file)
	queries, names := boardQueries(t), exported(t)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			queries[r.Alert] = r.Expr
		}
	}
	for where, q := range queries {
		for _, name := range seriesName.FindAllString(q, -1) {
			if !names[name] {
				t.Errorf("%s: nobody exports %s", where, name)
			}
		}
	}
}

// boardQueries reads the queries of the dashboard by panel.
func boardQueries(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(operate + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Type    string `json:"type"`
			Title   string `json:"title"`
			Targets []struct {
				Ref  string `json:"refId"`
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(raw, &board); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, p := range board.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks nothing", p.Title)
		}
		for _, q := range p.Targets {
			out["panel "+p.Title+" "+q.Ref] = q.Expr
		}
	}
	if len(out) == 0 {
		t.Fatal("the dashboard asks nothing")
	}
	return out
}

// The queries of the dashboard are ones that Prometheus takes.
func TestDashboardQueriesParse(t *testing.T) {
	var rules []map[string]string
	fill := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	for _, q := range boardQueries(t) {
		rules = append(rules, map[string]string{"record": "board:query", "expr": fill.Replace(q)})
	}
	raw, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "board", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "board.yaml")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", path)
}

// Prometheus takes what the server exports.
func TestExportedTextIsLinted(t *testing.T) {
	m := New("test")
	m.ReconcileCompleted(Summary{Looks: []HostLook{{HostID: "a", Result: LookComplete}}})
	m.WatchFleet(func() Fleet {
		return Fleet{Hosts: []HostFigures{{Host: &fleet.Host{ID: "a"}, Looked: true, Unreachable: true}}}
	})
	m.WatchLease(func() Lease { return Lease{Leader: true} })
	m.WatchPool(func() Pool { return Pool{} })
	m.WatchDisk(func() (Disk, bool) { return Disk{}, true })
	m.WatchWebhooks(func() Webhooks { return Webhooks{} })
	cmd := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	var ours []string
	for l := range strings.Lines(text(t, m)) {
		if strings.Contains(l, namespace) {
			ours = append(ours, l)
		}
	}
	cmd.Stdin = strings.NewReader(strings.Join(ours, ""))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
