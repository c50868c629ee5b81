//! Identifies the family of a file. Models that are known to be unsupported get an error that names the reason.

use super::family::{ModelFamily, all};
use super::fields::{FIELDS, Fields};
use crate::error::{Error, Result};

/// Models that are known to be unsupported, by the start of their type's name in lower case without `_` and `-`.
const REFUSED: &[(&str, &str)] = &[
    ("recurrent state", "rwkv zamba recurrentgemma xlstm kimilinear olmohybrid minimax bailinghybrid"),
    (
        "cross attention",
        "t5 mt5 umt5 byt5 longt5 switchtransformers bart mbart pegasus marian m2m100 nllb whisper mllama \
          encoderdecoder visionencoderdecoder speechencoderdecoder prophetnet blenderbot moonshine",
    ),
];

/// The number of families that an error lists.
const SHOWN: usize = 9;

/// Returns the family of a file, and the fields that describe its text model.
pub(super) fn identify<'a>(root: &Fields<'a>) -> Result<(&'static ModelFamily, Fields<'a>)> {
    check_attention_kind(root)?;
    let text = root.object("text_config", "text_config.")?;
    let named = by_name(root);
    if named.is_err()
        && let Some(text) = &text
        && let Some(family) = wrapped(root, text)?
    {
        check_attention_kind(text)?;
        return Ok((family, text.clone()));
    }
    let family = named?;
    let Some(inner) = family.text else {
        let expected = || format!("none in a model of type {}", family.model_type);
        return match text {
            None => Ok((family, root.clone())),
            Some(_) => Err(Error::unsupported("text_config", "an object", expected())),
        };
    };
    let Some(text) = text else {
        return Ok((family, without_text(root)?));
    };
    check_attention_kind(&text)?;
    match text.text("model_type")? {
        None => Ok((family, text)),
        Some(name) if name == inner => Ok((family, text)),
        Some(other) => Err(Error::unsupported(text.path("model_type"), other, inner)),
    }
}

/// The family of the text model in a file of a type that has no entry of its own, such as that of a model of pictures.
fn wrapped(root: &Fields<'_>, text: &Fields<'_>) -> Result<Option<&'static ModelFamily>> {
    let Some(inner) = text.text("model_type")? else { return Ok(None) };
    let class = root.texts("architectures")?.and_then(|names| names.first().copied());
    let refused = root.text("model_type")?.or(class).and_then(refusal);
    Ok(all().find(|family| family.model_type == inner && family.text.is_none()).filter(|_| refused.is_none()))
}

/// The text model of a file without `text_config`: it consists of defaults, whatever the outer object contains. If the
/// outer object contains fields of a text model, they would be ignored silently, so that is an error.
fn without_text<'a>(root: &Fields<'a>) -> Result<Fields<'a>> {
    match FIELDS.iter().find(|field| root.says(field)) {
        Some(field) => Err(Error::model("text_config", "missing", format!("an object that contains {field}"))),
        None => Ok(Fields::none("text_config.")),
    }
}

fn by_name(root: &Fields<'_>) -> Result<&'static ModelFamily> {
    if let Some(name) = root.text("model_type")? {
        let known = all().find(|family| family.model_type == name);
        return known.ok_or_else(|| Error::unsupported("model_type", name, expected(name)));
    }
    let architectures = root.texts("architectures")?.unwrap_or_default();
    let Some(name) = architectures.first() else {
        return Err(Error::unsupported("model_type", "missing", supported()));
    };
    let known = all().find(|family| family.architecture == *name);
    known.ok_or_else(|| Error::unsupported("architectures[0]", *name, expected(name)))
}

/// Returns an error for attention that no family here has: cross attention, settings of single layers, and attention to
/// later tokens.
fn check_attention_kind(fields: &Fields<'_>) -> Result<()> {
    for flag in ["is_encoder_decoder", "add_cross_attention"] {
        if fields.flag(flag)? {
            return Err(Error::unsupported(fields.path(flag), "true", "false: cross attention is not supported"));
        }
    }
    for (field, value, expected) in [
        ("cross_attention_layers", "a list", "none: cross attention is not supported"),
        ("per_layer_config", "an object", "none: settings of single layers are not supported"),
    ] {
        if fields.says(field) {
            return Err(Error::unsupported(fields.path(field), value, expected));
        }
    }
    if fields.says("use_bidirectional_attention") && fields.flag("use_bidirectional_attention").unwrap_or(true) {
        let expected = "false: attention to later tokens is not supported";
        return Err(Error::unsupported(fields.path("use_bidirectional_attention"), "true", expected));
    }
    Ok(())
}

/// Some of the supported families, and the reason why the model is not supported if it is known.
fn expected(name: &str) -> String {
    match refusal(name) {
        Some(what) => format!("{}: {what} is not supported", supported()),
        None => supported(),
    }
}

/// The reason why models of a type are known to be unsupported.
fn refusal(name: &str) -> Option<&'static str> {
    let name = name.replace(['_', '-'], "").to_lowercase();
    let known = |prefixes: &str| prefixes.split(' ').any(|prefix| name.starts_with(prefix));
    REFUSED.iter().find(|(_, prefixes)| known(prefixes)).map(|(what, _)| *what)
}

/// Some of the supported families: all of them would not fit into an error.
fn supported() -> String {
    let names: Vec<_> = all().take(SHOWN).map(|family| family.model_type).collect();
    format!("one of {} and {} others (docs/hybrid.md)", names.join(", "), all().count() - SHOWN)
}
