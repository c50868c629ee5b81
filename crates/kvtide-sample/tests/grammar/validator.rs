//! A naive validator of JSON schemas, for the keywords that the tests use.

use serde_json::Value;

pub fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Some(fields) = schema.as_object() else { return schema.as_bool() == Some(true) };
    fields.iter().all(|(keyword, rule)| keeps(root, schema, keyword, rule, value))
}

fn keeps(root: &Value, schema: &Value, keyword: &str, rule: &Value, value: &Value) -> bool {
    let valid = |schema: &Value| is_valid(root, schema, value);
    let size = |rule: &Value| rule.as_u64().expect("a size") as usize;
    match keyword {
        "$ref" => {
            let path = rule.as_str().and_then(|reference| reference.strip_prefix('#')).expect("a reference");
            valid(root.pointer(path).expect("a schema"))
        }
        "type" => match rule {
            Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind.as_str().unwrap_or(""), value)),
            kind => is_of(kind.as_str().unwrap_or(""), value),
        },
        "enum" => rule.as_array().expect("a list").contains(value),
        "const" => rule == value,
        "anyOf" => rule.as_array().expect("a list").iter().any(valid),
        "oneOf" => rule.as_array().expect("a list").iter().filter(|schema| valid(schema)).count() == 1,
        "allOf" => rule.as_array().expect("a list").iter().all(valid),
        "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().expect("a number")),
        "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().expect("a number")),
        "minLength" => value.as_str().is_none_or(|text| text.chars().count() >= size(rule)),
        "maxLength" => value.as_str().is_none_or(|text| text.chars().count() <= size(rule)),
        "minItems" => value.as_array().is_none_or(|list| list.len() >= size(rule)),
        "maxItems" => value.as_array().is_none_or(|list| list.len() <= size(rule)),
        "items" => value.as_array().is_none_or(|list| list.iter().all(|entry| is_valid(root, rule, entry))),
        "required" => value.as_object().is_none_or(|fields| {
            rule.as_array().expect("names").iter().all(|name| fields.contains_key(name.as_str().unwrap_or("")))
        }),
        "properties" => value.as_object().is_none_or(|fields| {
            fields.iter().all(|(name, value)| rule.get(name).is_none_or(|schema| is_valid(root, schema, value)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|fields| {
            let others = fields.iter().filter(|(name, _)| schema["properties"].get(name).is_none());
            others.into_iter().all(|(_, value)| is_valid(root, rule, value))
        }),
        "$defs" | "title" | "description" => true,
        other => panic!("the validator does not know {other}"),
    }
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}
