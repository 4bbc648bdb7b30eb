// Command dashboards writes the Grafana dashboards of the chart, to which config/prometheus refers, from the table in panels.go.
// It fails for a metric that dispatchers do not have, and for a recorded one that config/prometheus/rules.yaml does not record.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := generate("."); err != nil {
		fmt.Fprintln(os.Stderr, "hack/dashboards:", err)
		os.Exit(1)
	}
}

// generate works on the checkout in root.
func generate(root string) error {
	known, err := metrics(root)
	if err != nil {
		return err
	}
	for _, d := range []dashboard{fleet, one} {
		if err := d.check(known); err != nil {
			return err
		}
		text, err := d.text()
		if err != nil {
			return err
		}
		if err := os.WriteFile(d.file(root), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// file is where it is in a checkout.
func (d dashboard) file(root string) string {
	return filepath.Join(root, "charts", "outbox-operator", "files", "dashboards", d.name+".json")
}

// metrics are the names that the dispatchers' code gives its metrics, and those that the rules record.
func metrics(root string) (known []string, err error) {
	files, err := filepath.Glob(filepath.Join(root, "dispatcher", "internal", "metrics", "*.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range append(files, filepath.Join(root, "config", "prometheus", "rules.yaml")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if !strings.HasSuffix(file, "_test.go") {
			for _, found := range regexp.MustCompile(`"(outbox_[a-z_]+)"|- record: (outbox:[a-z0-9:]+)`).FindAllSubmatch(text, -1) {
				known = append(known, string(found[1])+string(found[2]))
			}
		}
	}
	return known, nil
}

// check fails when a panel has no words, or a query a metric that there is not.
func (d dashboard) check(known []string) error {
	for _, p := range d.panels {
		if p.title == "" || p.unit == "" || p.why == "" || len(p.queries) == 0 {
			return fmt.Errorf("dashboard %s, panel %q: each panel has a title, a unit, a query and why it is there; add them in hack/dashboards/panels.go", d.name, p.title)
		}
		for _, q := range p.queries {
			for _, name := range regexp.MustCompile(`\boutbox[_:][a-z0-9_:]+`).FindAllString(q.expr, -1) {
				if !slices.Contains(known, name) && !slices.Contains(known, strings.TrimSuffix(name, "_bucket")) {
					return fmt.Errorf("dashboard %s, panel %q: there is no metric %s; correct its query in hack/dashboards/panels.go", d.name, p.title, name)
				}
			}
		}
	}
	return nil
}

// text is the dashboard's file.
func (d dashboard) text() ([]byte, error) {
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	out.SetIndent("", " ")
	err := out.Encode(d.model())
	return text.Bytes(), err
}

type object = map[string]any

// source is what a person chooses.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// model is the dashboard as Grafana reads it.
func (d dashboard) model() object {
	chosen := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}
	for _, v := range d.variables {
		is := object{"name": v.name, "label": v.label, "type": "query", "datasource": source, "definition": v.query, "query": object{"query": v.query, "refId": v.name}, "refresh": 2, "sort": 1}
		if v.several {
			is["multi"], is["includeAll"], is["allValue"], is["current"] = true, true, ".*", object{"text": "All", "value": "$__all"}
		}
		chosen = append(chosen, is)
	}
	var panels []object
	x, y, height := 0, 0, 0
	for i, p := range d.panels {
		if x+p.width > 24 {
			x, y = 0, y+height
		}
		if height = 8; p.kind == "stat" {
			height = 4
		} else if p.width == 24 {
			height = 6
		}
		of := p.model(d)
		of["id"], of["gridPos"] = i+1, object{"x": x, "y": y, "w": p.width, "h": height}
		panels = append(panels, of)
		x += p.width
	}
	return object{
		"title": d.title, "uid": d.uid, "description": d.description, "tags": []string{"outbox"}, "schemaVersion": 41, "editable": false, "graphTooltip": 1,
		"time": object{"from": "now-1h", "to": "now"}, "refresh": "30s", "templating": object{"list": chosen}, "panels": panels,
	}
}

func (p panel) model(d dashboard) object {
	defaults := object{"unit": p.unit, "color": object{"mode": "palette-classic"}}
	options := object{}
	switch p.kind {
	case "timeseries": // Grafana's own scale of nothing but zeros goes to 100
		defaults["min"], defaults["custom"] = 0, object{"lineWidth": 2, "fillOpacity": 8, "showPoints": "never", "axisSoftMax": 1, "spanNulls": false}
		if least := map[string]float64{"short": 5, "s": 0.1}[p.unit]; least > 0 {
			defaults["custom"].(object)["axisSoftMax"] = least
		}
		options = object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": object{"mode": "multi", "sort": "desc"}}
	case "state-timeline":
		defaults["custom"] = object{"fillOpacity": 80, "lineWidth": 0, "spanNulls": false}
		options = object{"mergeValues": true, "showValue": "auto", "rowHeight": 0.8, "legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}}
	case "bargauge":
		defaults["min"], defaults["max"] = 0, 1
		defaults["color"], defaults["thresholds"] = object{"mode": "thresholds"}, steps("red", 0.25, "orange", 0.5, "green")
		options = object{"orientation": "horizontal", "displayMode": "basic", "reduceOptions": object{"calcs": []string{"lastNotNull"}}}
	case "stat":
		defaults["color"], defaults["thresholds"] = object{"mode": "thresholds"}, steps("text")
		if p.bad {
			defaults["thresholds"] = steps("green", 1, "red")
		}
		if p.unit == "percentunit" {
			defaults["thresholds"] = steps("red", 0.25, "orange", 0.5, "green")
		}
		options = object{"colorMode": "value", "graphMode": "none", "textMode": "value", "reduceOptions": object{"calcs": []string{"lastNotNull"}}}
	}
	if p.states != nil {
		mapped := object{}
		for number, s := range p.states {
			mapped[fmt.Sprint(number)] = object{"text": s.word, "color": s.colour, "index": number}
		}
		defaults["mappings"] = []object{{"type": "value", "options": mapped}}
		defaults["color"] = object{"mode": "thresholds"}
	}
	var targets []object
	overrides := []object{}
	for i, q := range p.queries {
		expr := strings.NewReplacer("OF", d.of, "RATE", "$__rate_interval").Replace(q.expr)
		targets = append(targets, object{"refId": string(rune('A' + i)), "datasource": source, "expr": expr, "legendFormat": q.legend})
		if colour := colours[q.legend]; colour != "" {
			is := []object{{"id": "color", "value": object{"mode": "fixed", "fixedColor": colour}}}
			if q.legend == "objective" {
				is = append(is, object{"id": "custom.lineStyle", "value": object{"fill": "dash", "dash": []int{8, 8}}}, object{"id": "custom.fillOpacity", "value": 0})
			}
			overrides = append(overrides, object{"matcher": object{"id": "byName", "options": q.legend}, "properties": is})
		}
	}
	return object{"title": p.title, "description": p.why, "type": p.kind, "datasource": source, "fieldConfig": object{"defaults": defaults, "overrides": overrides}, "options": options, "targets": targets}
}

// steps are colours with the values between them.
func steps(all ...any) object {
	list := []object{{"color": all[0], "value": nil}}
	for i := 1; i < len(all); i += 2 {
		list = append(list, object{"color": all[i+1], "value": all[i]})
	}
	return object{"mode": "absolute", "steps": list}
}

// merged are states of several kinds.
func merged(all ...map[int]state) map[int]state {
	out := map[int]state{}
	for _, of := range all {
		maps.Copy(out, of)
	}
	return out
}
